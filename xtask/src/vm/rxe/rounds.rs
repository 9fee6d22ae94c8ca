//! The rounds of programs, and the scripts of both sides for them.

/// The server of the guest's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The same programs, under `verbless-model run`.
    Programs,
    /// Our own driver: `rxe-peer` of `verbless-rxe`.
    Ours,
}

/// The kind of addresses in the GIDs. The packets are those of RoCE v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// Link-local addresses of IPv6.
    LinkLocal,
    /// IPv4.
    Ipv4,
    /// IPv4, and the model's packets are UDP datagrams of the host.
    Udp,
}

/// The name of the round over UDP datagrams of the host.
pub(crate) const BY_UDP: &str = "rdma_rxe and UDP datagrams of the host";

/// Programs with one kind of server, over one kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) peer: Peer,
    pub(super) network: Network,
    /// Whether one frame in a hundred is lost, each way.
    pub(super) loses: bool,
}

/// All rounds, in the order of the guest and of the host.
pub(super) const ROUNDS: [Round; 8] = [
    Round { peer: Peer::Programs, network: Network::LinkLocal, loses: false },
    Round { peer: Peer::Programs, network: Network::LinkLocal, loses: true },
    Round { peer: Peer::Programs, network: Network::Ipv4, loses: false },
    Round { peer: Peer::Programs, network: Network::Ipv4, loses: true },
    Round { peer: Peer::Programs, network: Network::Udp, loses: false },
    Round { peer: Peer::Ours, network: Network::LinkLocal, loses: false },
    Round { peer: Peer::Ours, network: Network::LinkLocal, loses: true },
    Round { peer: Peer::Ours, network: Network::Ipv4, loses: false },
];

/// These do not retransmit. rxe's path MTU is 1024 bytes, as on an Ethernet link of MTU 1500.
const UNRELIABLE: [&str; 2] =
    ["ibv_ud_pingpong -c -e -n 100 -s 1000", "ibv_uc_pingpong -c -e -n 100"];
const PINGPONG: &str = "ibv_rc_pingpong -c -e -n 100";
/// perftest's send from both ends at once, so that each is requester and responder. The model
/// answers 16 READs and atomics at a time. With `-u` they retransmit for 2 s: an emulated guest on
/// a busy machine may be silent for the usual half second. With `-l` they post by few calls: Linux
/// 6.1's rdma_rxe sends in the call that posts. If an acknowledgement arrives just as that call
/// begins to retransmit, it retransmits an acknowledged message as an empty one, and all later
/// messages have wrong PSNs.
const RELIABLE: [&str; 5] = [
    PINGPONG,
    "ib_write_bw -F -b -m 1024 -s 16384 -n 50 -l 50 -u 16",
    "ib_read_bw -F -b -m 1024 -s 16384 -n 50 -l 50 -o 16 -u 16",
    "ib_send_bw -F -b -m 1024 -s 16384 -n 50 -l 50 -u 16",
    "ib_atomic_bw -F -b -m 1024 -n 500 -l 100 -o 16 -u 16",
];
/// The programs that show other headers.
const OVER_IPV4: [&str; 3] = [UNRELIABLE[0], RELIABLE[0], RELIABLE[1]];

/// The model's IPv4 address, and the guest's address with QEMU's first MAC; `prepare.sh` repeats
/// them.
pub(super) const IPV4_OF_MODEL: &str = "192.0.2.1";
pub(super) const GUEST: &str = "192.0.2.2=52:54:00:12:34:56";

/// The TCP port of the first program of the first round, and the ports of each round.
const FIRST_PORT: u16 = 19000;
const PORTS: u16 = 20;

/// The guest's part of all scripts, and the host's.
const CLIENTS: &str = include_str!("clients.sh");
const SERVERS: &str = include_str!("servers.sh");

impl Round {
    pub(super) fn title(self) -> String {
        let peer = match self.peer {
            Peer::Programs => "the same programs on the model",
            Peer::Ours => "our own driver",
        };
        let network = match self.network {
            Network::LinkLocal => "",
            Network::Ipv4 => " over IPv4",
            Network::Udp => " by UDP datagrams of the host",
        };
        let link = if self.loses { "with 1 % of frames lost" } else { "without faults" };
        format!("{peer}{network}, {link}")
    }

    pub(super) fn programs(self) -> Vec<&'static str> {
        match self {
            Self { network: Network::Ipv4, loses: true, .. } => RELIABLE[..2].to_vec(),
            Self { network: Network::Ipv4, .. } => OVER_IPV4.to_vec(),
            Self { network: Network::Udp, .. } => RELIABLE[..2].to_vec(),
            Self { loses: true, .. } => RELIABLE.to_vec(),
            _ => [&UNRELIABLE[..], &RELIABLE[..]].concat(),
        }
    }

    /// Whether it can run, with a tap device or without.
    pub(super) fn is_possible(self, tap: bool) -> bool {
        tap || self.network != Network::Udp
    }

    /// The last program, which waits forever for a lost datagram.
    pub(super) fn stalls(self) -> Option<&'static str> {
        let here = Self { peer: Peer::Programs, network: Network::LinkLocal, loses: true };
        (self == here).then_some(UNRELIABLE[0])
    }

    /// The TCP port of the first program.
    pub(super) fn port(self) -> u16 {
        let before = ROUNDS.iter().take_while(|&&round| round != self).count();
        FIRST_PORT + PORTS * before as u16
    }

    /// The port of the program that stalls.
    fn last_port(self) -> u16 {
        self.port() + PORTS - 1
    }

    /// The index of rxe's GID: it has the default GID, and one for each address.
    fn gid_of_rxe(self) -> u8 {
        match self.network {
            Network::LinkLocal => 0,
            Network::Ipv4 | Network::Udp => 1,
        }
    }

    /// The index of the model's GID: each has an entry for RoCE v1 and then one for RoCE v2.
    pub(super) fn gid_of_model(self) -> u8 {
        match self.network {
            Network::LinkLocal => 1,
            Network::Ipv4 | Network::Udp => 3,
        }
    }

    /// The script of the servers under `run`.
    pub(super) fn servers(self) -> String {
        let mut script = SERVERS.to_string();
        for (port, program) in (self.port()..).zip(self.programs()) {
            script += &format!("serve {port} {}\n", with_gid(program, self.gid_of_model()));
            if self.loses {
                script += "must_have_lost\n";
            }
            if self.loses && program == PINGPONG {
                script += "lose_all\n";
            }
        }
        if let Some(program) = self.stalls() {
            let (port, gid) = (self.last_port(), self.gid_of_model());
            script += &format!("stall {port} {}\n", with_gid(program, gid));
        }
        script + "exit $failed\n"
    }
}

/// The guest's script.
pub(super) fn clients(rounds: &[Round]) -> String {
    let mut script = CLIENTS.to_string();
    for round in rounds {
        let device = if round.network == Network::Udp { "rxe1" } else { "rxe0" };
        script += &format!("device={device}\n");
        script += &format!("round='{}'\necho \"--- with $round\"\n", round.title());
        for (port, program) in (round.port()..).zip(round.programs()) {
            script += &format!("exchange {port} {}\n", with_gid(program, round.gid_of_rxe()));
        }
        if let Some(program) = round.stalls() {
            let (port, gid) = (round.last_port(), round.gid_of_rxe());
            script += &format!("stall {port} {}\n", with_gid(program, gid));
        }
    }
    script + "echo \"$passed passed, $failed failed, 0 skipped\"\n[ $failed = 0 ]\n"
}

/// A program's command line with its GID.
fn with_gid(program: &str, index: u8) -> String {
    let option = if program.starts_with("ibv_") { "-g" } else { "-x" };
    format!("{program} {option} {index}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Port, command and GID of each line that begins with a word.
    fn lines(script: &str, word: &str) -> Vec<(u16, String, String)> {
        let of = |line: &str| {
            let (port, line) = line.strip_prefix(word)?.split_once(' ')?;
            let (command, gid) = line.rsplit_once(' ')?;
            Some((port.parse().ok()?, command.to_string(), gid.to_string()))
        };
        script.lines().filter_map(of).collect()
    }

    #[test]
    fn both_ends_run_same_programs_on_same_ports() {
        let guest = lines(&clients(&ROUNDS), "exchange ");
        let host = ROUNDS.iter().flat_map(|round| lines(&round.servers(), "serve "));
        let programs: usize = ROUNDS.iter().map(|round| round.programs().len()).sum();
        assert_eq!(guest.len(), programs);
        for ((port, client, of_rxe), (at, server, of_model)) in guest.iter().zip(host) {
            assert_eq!((port, client), (&at, &server));
            let gids = (of_rxe.as_str(), of_model.as_str());
            assert!(matches!(gids, ("0", "1") | ("1", "3")), "{gids:?}");
        }
        let mut ports: Vec<u16> = guest.iter().map(|(port, ..)| *port).collect();
        ports.dedup();
        assert_eq!(ports.len(), guest.len(), "each program has a port of its own");
    }

    #[test]
    fn lossy_rounds_check_for_losses() {
        for round in ROUNDS {
            let script = round.servers();
            let checks = script.lines().filter(|&line| line == "must_have_lost").count();
            assert_eq!(checks, if round.loses { round.programs().len() } else { 0 });
            assert_eq!(script.contains("\nlose_all\n"), round.loses);
            let repeats = |program: &&str| !UNRELIABLE.contains(program);
            let reliable = round.loses || round.network == Network::Udp;
            assert_eq!(round.programs().iter().all(repeats), reliable);
        }
    }

    #[test]
    fn one_unreliable_program_stalls_on_both_ends() {
        let guest = lines(&clients(&ROUNDS), "stall ");
        let host: Vec<_> = ROUNDS.iter().flat_map(|it| lines(&it.servers(), "stall ")).collect();
        let [(port, client, _)] = &guest[..] else { panic!("{guest:?}") };
        assert_eq!(
            host.iter().map(|(at, server, _)| (at, server)).collect::<Vec<_>>(),
            [(port, client)]
        );
        assert_eq!(client.strip_suffix(" -g"), Some(UNRELIABLE[0]));
        let others = lines(&clients(&ROUNDS), "exchange ");
        assert!(others.iter().all(|(at, ..)| at != port));
    }
}
