use super::*;

const ALL: &str = r#"
        seed = 7
        [[link]]
        latency = "10us"
        bandwidth = "25Gb/s"
        [[link]]
        device = 1
        port = 1
        up = false
        partition = 3
        loopback = true
        latency = "0ns"
        [[fault]]
        effect = "lose"
        chance = 0.01
        [[fault]]
        effect = "delay"
        by = "50us"
        device = 0
        direction = "in"
        qpn = 0x40
        opcode = ["RC_SEND_ONLY", 0x11]
        psn = [0xfffff0, 2]
        fatal_nak = false
        nth = 3
        count = 2
        [[fault]]
        effect = "corrupt"
        psn = 7
        opcode = "RC_ACKNOWLEDGE"
        [[fault]]
        effect = "duplicate"
        nth = 1
        [[command]]
        opcode = "CREATE_CQ"
        status = 5
        [[command]]
        device = 1
        opcode = 0x500
        nth = 2
        status = 0x0f
        syndrome = 0x1234
        [[ioctl]]
        errno = "EIO"
        [[ioctl]]
        device = 1
        method = "CREATE_CQ"
        nth = 3
        errno = 12
        [[ioctl]]
        method = [0x1001, 0x1000]
        errno = "EREMOTEIO"
        [[queue]]
        kind = "cq"
        [[queue]]
        device = 1
        kind = "qp"
        number = 0x45
        nth = 3
    "#;

#[test]
fn plan_maps_keys_to_settings_and_faults() {
    let plan = FaultPlan::parse(ALL).unwrap();
    plan.check(&[1, 1]).unwrap();
    let first = plan.settings(&LinkSettings::default(), &[0], 1);
    let second = plan.settings(&LinkSettings::default(), &[1], 1);
    let select = FrameSelector::default();
    let lose = FrameFault {
        effect: FrameEffect::Lose,
        select: select.clone(),
        when: Occurrence::Chance(0.01),
    };
    let delay = FrameFault {
        effect: FrameEffect::Delay(Duration::from_micros(50)),
        select: FrameSelector {
            leaving: Some(false),
            qpn: Some(0x40),
            opcodes: vec![0x04, 0x11],
            psns: Some((0xff_fff0, 2)),
            fatal_nak: Some(false),
        },
        when: Occurrence::Nth { skip: 2, count: 2 },
    };
    let corrupt = FrameFault {
        effect: FrameEffect::Corrupt(1),
        select: FrameSelector { opcodes: vec![0x11], psns: Some((7, 7)), ..select.clone() },
        when: Occurrence::Chance(1.0),
    };
    let duplicate = FrameFault {
        effect: FrameEffect::Duplicate,
        select,
        when: Occurrence::Nth { skip: 0, count: 1 },
    };
    let usual = LinkSettings {
        latency: Duration::from_micros(10),
        bandwidth: Some(25_000_000_000),
        seed: 7,
        faults: vec![lose.clone(), delay, corrupt.clone(), duplicate.clone()],
        ..LinkSettings::default()
    };
    assert_eq!(first, usual);
    let expected = LinkSettings {
        up: false,
        latency: Duration::ZERO,
        partition: 3,
        loopback: true,
        faults: vec![lose, corrupt, duplicate],
        ..usual
    };
    assert_eq!(second, expected);
    // Both functions of a card share the link.
    assert_eq!(plan.settings(&LinkSettings::default(), &[0, 1], 1).faults.len(), 4);
    let (usual, other) = (
        CommandFault { device: 0, opcode: 0x400, when: Times::from(1), status: 5, syndrome: 0 },
        CommandFault {
            device: 1,
            opcode: 0x500,
            when: Times::from(2),
            status: 15,
            syndrome: 0x1234,
        },
    );
    assert_eq!(plan.commands(), [usual, other]);
    let fault =
        |device, ioctl, nth: u32, errno| IoctlFault { device, ioctl, when: nth.into(), errno };
    let ioctls = [
        fault(0, Ioctl::Any, 1, 5),
        fault(1, Ioctl::Named("CREATE_CQ"), 3, 12),
        fault(0, Ioctl::Method { object: 0x1001, method: 0x1000 }, 1, 121),
    ];
    assert_eq!(plan.ioctls(), ioctls);
    let (any, one) = (
        QueueFault { device: 0, kind: QueueKind::Cq, number: None, when: Times::from(1) },
        QueueFault { device: 1, kind: QueueKind::Qp, number: Some(0x45), when: Times::from(3) },
    );
    assert_eq!(plan.queues(), [any, one]);
    assert_eq!(FaultPlan::parse(""), Ok(FaultPlan::default()));
}

#[test]
fn documented_plan_parses() {
    let text = include_str!("../../../../docs/faults.md");
    let lines = text.lines().skip_while(|line| !line.starts_with("seed"));
    let example: Vec<_> = lines.take_while(|line| *line != "```").collect();
    let plan = FaultPlan::parse(&example.join("\n")).unwrap();
    assert_eq!((plan.links.len(), plan.faults.len(), plan.commands.len()), (1, 2, 1));
    assert_eq!((plan.queues.len(), plan.ioctls.len()), (1, 1));
}

#[test]
fn plan_errors_name_line_and_correction() {
    let cases = [
        ("seed = -1", "line 1: [[plan]] seed is -1: it is from 0 to 9223372036854775807"),
        ("\nlinks = 1", "line 2: the file's links: there is no such key; did you mean link?"),
        ("[link]", "line 1: link is a list of entries: write [[link]]"),
        ("link = [1]", "line 1: link is a list of entries: write [[link]]"),
        (
            "[[link]]\nlatence = 1",
            "line 2: [[link]] latence: there is no such key; did you \
                mean latency?",
        ),
        (
            "[[link]]\ncolour = 1",
            "line 2: [[link]] colour: there is no such key; there are device, \
                port, up, latency, bandwidth, partition, loopback",
        ),
        ("[[ioctl]]\nnth = 1", "line 1: [[ioctl]]: errno is missing"),
        (
            "[[ioctl]]\nerrno = \"ENOPE\"",
            "line 2: [[ioctl]] errno is \"ENOPE\": there is no errno of that name",
        ),
        (
            "[[ioctl]]\nerrno = 0",
            "line 2: [[ioctl]] errno is not an errno: write \"ENOMEM\", or a number from 1 to 4095",
        ),
        (
            "[[ioctl]]\nerrno = 1\nmethod = \"CQ\"",
            "line 3: [[ioctl]] method is neither the name of an ioctl, as `run --trace` prints \
                it, nor the ids of object and method: method = \"CQ_CREATE\" or method = [0x1001, \
                0x1000]",
        ),
        (
            "[[ioctl]]\nerrno = 1\nmethod = [1, 65536]",
            "line 3: [[ioctl]] method is 65536: it is from 0 to 65535",
        ),
        ("[[queue]]\nnth = 1", "line 1: [[queue]]: kind is missing"),
        ("[[queue]]\nkind = \"rq\"", "line 2: [[queue]] kind is \"rq\": there are qp, cq"),
        (
            "[[queue]]\nkind = \"qp\"\nnumber = 16777216",
            "line 3: [[queue]] number is 16777216: it is from 0 to 16777215",
        ),
        ("[[link]]\nup = 1", "line 2: [[link]] up is of type integer, and must be true or false"),
        (
            "[[link]]\nlatency = 5",
            "line 2: [[link]] latency is of type integer, and must be a \
                time, as \"50us\": an integer and ns, us, ms or s",
        ),
        (
            "[[link]]\nlatency = \"5\"",
            "line 2: [[link]] latency is \"5\", and must be a \
                time, as \"50us\": an integer and ns, us, ms or s",
        ),
        (
            "[[link]]\nlatency = \"99999999999999999999s\"",
            "line 2: [[link]] latency is \
                \"99999999999999999999s\", and must be a time, as \"50us\": an integer and ns, \
                us, ms or s",
        ),
        (
            "[[link]]\nbandwidth = \"0b/s\"",
            "line 2: [[link]] bandwidth is 0: a link that \
                carries nothing is `up = false`",
        ),
        (
            "[[link]]\nbandwidth = \"1GB\"",
            "line 2: [[link]] bandwidth is \"1GB\", and must \
                be a rate, as \"100Gb/s\": an integer and b/s, kb/s, Mb/s or Gb/s",
        ),
        ("[[link]]\nport = 0", "line 2: [[link]] port is 0: it is from 1 to 255"),
        ("\n[[fault]]\nchance = 1", "line 2: [[fault]]: effect is missing"),
        (
            "[[fault]]\neffect = \"drop\"",
            "line 2: [[fault]] effect is \"drop\": there are \
                lose, duplicate, delay, corrupt",
        ),
        (
            "[[fault]]\neffect = \"lose\"\nby = \"1s\"",
            "line 3: [[fault]] by belongs to \
                effect = \"delay\"",
        ),
        (
            "[[fault]]\neffect = \"delay\"",
            "line 1: [[fault]]: effect = \"delay\" needs `by`, for example \
                by = \"50us\"",
        ),
        (
            "[[fault]]\neffect = \"delay\"\nby = \"1s\"\nbits = 1",
            "line 4: [[fault]] bits \
                belongs to effect = \"corrupt\"",
        ),
        (
            "[[fault]]\neffect = \"lose\"\nbits = 1",
            "line 3: [[fault]] bits belongs to effect \
                = \"corrupt\"",
        ),
        (
            "[[fault]]\neffect = \"corrupt\"\nbits = 0",
            "line 3: [[fault]] bits is 0: it is \
                from 1 to 524288",
        ),
        (
            "[[fault]]\neffect = \"lose\"\nchance = 1.5",
            "line 3: [[fault]] chance is a \
                probability: it is from 0 to 1, as 0.01 for one frame in a hundred",
        ),
        (
            "[[fault]]\neffect = \"lose\"\nchance = 1\nnth = 2",
            "line 3: [[fault]] chance \
                does not go with nth and count: choose",
        ),
        (
            "[[fault]]\neffect = \"lose\"\nqpn = 0x1000000",
            "line 3: [[fault]] qpn is \
                0x1000000: it is from 0x0 to 0xffffff",
        ),
        (
            "[[fault]]\neffect = \"lose\"\nopcode = [0x11, 0x1_00]",
            "line 3: [[fault]] opcode is \
                0x1_00: it is from 0x0 to 0xff",
        ),
        (
            "[[queue]]\nkind = \"qp\"\nnumber = 0b1_0000_0000_0000_0000_0000_0000",
            "line 3: [[queue]] number is 0b1_0000_0000_0000_0000_0000_0000: it is from 0 to \
                16777215",
        ),
        (
            "[[fault]]\neffect = \"lose\"\nopcode = \"SEND\"",
            "line 3: [[fault]] opcode is \
                \"SEND\": there is no opcode of packets of that name",
        ),
        (
            "[[fault]]\neffect = \"lose\"\npsn = [1, 2, 3]",
            "line 3: [[fault]] psn is a PSN \
                or two, the first and the last: psn = [0, 99]",
        ),
        (
            "[[fault]]\neffect = \"lose\"\ndirection = 1",
            "line 3: [[fault]] direction is of \
                type integer, and must be a string",
        ),
        ("[[command]]\nopcode = \"CREATE_CQ\"", "line 1: [[command]]: status is missing"),
        (
            "[[command]]\nopcode = \"CREATE\"\nstatus = 1",
            "line 2: [[command]] opcode is \
                \"CREATE\": there is no command of that name",
        ),
        (
            "[[command]]\nopcode = 1\nstatus = 0",
            "line 3: [[command]] status is 0: it is from \
                1 to 255",
        ),
    ];
    for (text, expected) in cases {
        let error = FaultPlan::parse(text).expect_err(text).to_string();
        assert_eq!(error, expected.replace("  ", ""), "{text}");
    }
    let syntax = FaultPlan::parse("a = ").unwrap_err().to_string();
    assert!(syntax.contains("line 1"), "{syntax}");
    let missing = FaultPlan::load(Path::new("/nonexistent")).unwrap_err().to_string();
    assert!(missing.starts_with("cannot read the faults /nonexistent: "), "{missing}");
}

#[test]
fn plan_for_missing_device_or_port_is_rejected() {
    let check = |text: &str, ports: &[usize]| {
        FaultPlan::parse(text).unwrap().check(ports).map_err(|error| error.to_string())
    };
    assert_eq!(check("[[link]]\ndevice = 1\nport = 2", &[1, 2]), Ok(()));
    assert_eq!(check("[[link]]\nport = 2", &[1, 2]), Ok(()));
    assert_eq!(
        check("\n[[link]]\ndevice = 2", &[1, 2]),
        Err("line 2: there is no device 2: there are 2, numbered from 0".into())
    );
    assert_eq!(
        check("[[fault]]\neffect = \"lose\"\ndevice = 0\nport = 2", &[1, 2]),
        Err("line 1: there is no port 2: there are 1, numbered from 1".into())
    );
    assert_eq!(
        check("[[command]]\ndevice = 3\nopcode = 1\nstatus = 1", &[1]),
        Err("there is no device 3: there are 1, numbered from 0".into())
    );
}

#[test]
fn plan_faults_repeat_by_nth_count_and_always() {
    let text = "[[command]]\nopcode = 0x400\nstatus = 5\nnth = 2\ncount = 3\n\
        [[ioctl]]\nerrno = 5\nalways = true\n[[queue]]\nkind = \"cq\"\nalways = false";
    let plan = FaultPlan::parse(text).unwrap();
    assert_eq!(plan.commands()[0].when, Times::from(2).count(3));
    assert_eq!(plan.ioctls()[0].when, Times::from(1).always());
    assert_eq!(plan.queues()[0].when, Times::from(1));
    let both = text.replace("count = 3", "count = 3\nalways = true");
    let error = FaultPlan::parse(&both).unwrap_err().to_string();
    assert!(error.contains("count"), "{error}");
    let none = FaultPlan::parse(&text.replace("count = 3", "count = 0"));
    assert_eq!(none.unwrap_err().line, Some(5));
}
