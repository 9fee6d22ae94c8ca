//! The sides of a DPU, each with its own programs.

use std::process::Command;

use super::{client, output_of, run, skipped};

#[test]
fn program_sees_devices_of_own_side_only() {
    let profiles = ["bluefield3", "connectx6dx", "bluefield3"];
    let profiles = profiles.map(|profile| format!("--profile={profile}"));
    let on = |side, script| {
        let options: Vec<_> = profiles.iter().map(|it| &**it).chain(["--side", side]).collect();
        output_of(&options, script)
    };
    assert_eq!(on("host", "ls /dev/infiniband"), "uverbs0\nuverbs1\nuverbs2");
    assert_eq!(on("dpu", "ls /dev/infiniband"), "uverbs0\nuverbs1");
    assert_eq!(on("dpu", "ls /sys/class/infiniband"), "mlx5_0\nmlx5_1");
    let guids = "cd /; for name in $(ls sys/class/infiniband); do \
        cat sys/class/infiniband/$name/sys_image_guid; done";
    let (host, dpu) = (on("host", guids), on("dpu", guids));
    let [first, _, last] = host.lines().collect::<Vec<_>>()[..] else { panic!("{host}") };
    assert_eq!(dpu.lines().collect::<Vec<_>>(), [first, last], "the same cards");
    let own = "cat /sys/class/infiniband/mlx5_0/node_guid";
    assert_ne!(on("host", own), on("dpu", own));
    assert_eq!(output_of(&[], own), on("host", own), "a program is at the host by default");
}

#[test]
fn opening_dpu_device_enables_ecpf_function() {
    let options = ["--devices", "2", "--side", "dpu", "--trace"];
    let output = run(&options, "exec 5<>/dev/infiniband/uverbs1");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    // Functions of a card: the host's, then the DPU's.
    let enabled: Vec<_> = text.lines().filter(|line| line.contains(" ENABLE_HCA(")).collect();
    let [line] = enabled[..] else { panic!("{text}") };
    assert!(line.contains("function 3 ENABLE_HCA(embedded_cpu_function=1) -> ok"), "{line}");
}

#[test]
fn side_without_devices_is_rejected() {
    let output = run(&["--profile", "connectx6dx", "--side", "dpu"], "echo started");
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("no device of this run has a DPU side") && text.contains("bluefield3"),
        "{text}"
    );
    let output = run(&["--profile", "connectx6dx", "--dpu", "echo there"], "echo here");
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
}

#[test]
fn dpu_command_runs_beside_host_program() {
    let file = std::env::temp_dir().join(format!("verbless-sides-{}", std::process::id()));
    let own = "cat /sys/class/infiniband/mlx5_0/node_guid";
    let dpu = format!("cat; {own} > {0}.new; mv {0}.new {0}", file.display());
    let script = format!("until test -e {0}; do sleep 0.05; done; {own}; cat {0}", file.display());
    let text = output_of(&["--dpu", &dpu], &script);
    let _ = std::fs::remove_file(&file);
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [output_of(&[], own), output_of(&["--side", "dpu"], own)]
    );
}

#[test]
fn exit_status_is_first_nonzero_host_first() {
    let status = |dpu: &str, script: &str| run(&["--dpu", dpu], script).status.code();
    assert_eq!(status("exit 0", "exit 0"), Some(0));
    assert_eq!(status("exit 5", "exit 0"), Some(5));
    assert_eq!(status("sleep 0.2; exit 5", "exit 3"), Some(3));
    assert_eq!(status("sleep 0.2; exit 5", "exit 0"), Some(5), "both are waited for");
    assert_eq!(status("no-such-program 2>&-", "exit 0"), Some(127));
}

#[test]
fn failed_host_program_terminates_dpu_command() {
    let stubborn = std::thread::spawn(|| run(&["--dpu", "trap '' TERM; sleep 300"], "kill -9 $$"));
    // The child of the shell ends too.
    let waits = "trap 'echo asked; exit 0' TERM; sleep 300 & wait; echo no";
    let start = std::time::Instant::now();
    let output = run(&["--dpu", waits], "exit 3");
    assert!(start.elapsed().as_secs() < 60, "its child ends too");
    assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b"asked\n"[..]));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("failed (exit status: 3)") && errors.contains("SIGTERM"), "{errors}");

    let output = stubborn.join().expect("no panic");
    assert_eq!(output.status.code(), Some(128 + 9));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("SIGTERM") && errors.contains("SIGKILL"), "{errors}");
    // After a program that succeeds, the DPU command runs to its end.
    let output = run(&["--dpu", "sleep 7; echo there"], "exit 0");
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"there\n"[..]));
}

#[test]
fn rdma_core_programs_connect_across_sides() {
    if Command::new("ibv_rc_pingpong").arg("--help").output().is_err() {
        return skipped("there is no ibv_rc_pingpong here");
    }
    for (port, (link, path)) in (18650..).zip([("infiniband", ""), ("ethernet", " -g 1")]) {
        // -c checks the received data.
        let pingpong = format!("ibv_rc_pingpong -c -e -n 100 -p {port}{path}");
        let options = ["--link", link, "--dpu", &pingpong];
        let output = run(&options, &client(&format!("{pingpong} localhost")));
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{errors}");
        assert_eq!(text.matches("100 iters").count(), 2, "{text}");
        assert!(!errors.contains("outlive"), "{errors}");
    }
}

#[test]
fn sysfs_lists_pf_vf_and_sf_per_side() {
    let here = "cd /sys/class/infiniband; for it in *; do echo $(basename $(realpath $it/device)) \
        $(cat $it/device/device $it/device/sfnum 2>/dev/null); done";
    assert_eq!(
        output_of(&["--topology"], here),
        "fb0b:0b:00.0 0xa2dc\nfb0b:0b:00.1 0xa2dc\nfb0b:0b:00.2 0x101e\nfb0b:0b:00.3 0x101e\n\
         fb0b:0b:00.4 0x101e"
    );
    assert_eq!(
        output_of(&["--topology", "--side", "dpu"], here),
        "fb0b:03:00.0 0xa2dc\nfb0b:03:00.1 0xa2dc\nmlx5_core.sf.2 0\nmlx5_core.sf.3 0"
    );
    let related = "cd /sys/bus/pci/devices && readlink -f fb0b:0b:00.3/physfn fb0b:0b:00.1/virtfn0";
    assert_eq!(
        output_of(&["--topology"], related),
        "/sys/devices/pcifb0b:0b/fb0b:0b:00.0\n/sys/devices/pcifb0b:0b/fb0b:0b:00.4"
    );
    assert_eq!(
        output_of(&[], "ls /sys/class/infiniband"),
        "mlx5_0",
        "no other functions without --topology"
    );
}

#[test]
fn dpu_sysfs_lists_representors() {
    let listed = "cd /sys/class/infiniband/mlx5_1/device/net && for it in *; do echo $it \
        $(cat $it/phys_port_name $it/represents/pci_address 2>/dev/null); done";
    assert_eq!(
        output_of(&["--topology", "--side", "dpu"], listed),
        "p1 p1\npf1hpf c1pf1 fb0b:0b:00.1\npf1sf0 pf1sf0\npf1vf0 c1pf1vf0 fb0b:0b:00.4"
    );
    let switches = "cat /sys/class/infiniband/mlx5_*/device/net/*/phys_switch_id | uniq -c | wc -l";
    assert_eq!(output_of(&["--topology", "--side", "dpu"], switches), "1", "of one card");
    let of_two = "ls /sys/class/infiniband/mlx5_0/device/net";
    assert_eq!(output_of(&["--side", "dpu"], of_two), "p0\npf0hpf");
    assert_eq!(output_of(&[], &format!("{of_two} 2>/dev/null || echo none")), "none");
}
