//! `rxe-peer`: the server of rdma-core's pingpongs and of perftest's programs, on the public API of
//! `verbless` and a model in this process; a datagram socket is joined to the model's Ethernet
//! switch.
//!
//! Its peers are the unmodified programs on another device, such as Linux's rdma_rxe in a VM
//! (`cargo xtask vm --rxe`). It serves the given programs one after the other, each at the TCP port
//! after the last one's, and checks the data that arrived:
//!
//! - `program`: a program, and how much it sends.
//! - `stream`: the messages of the two sides over TCP before and after.
//! - `end`: our end: a domain, memory, a completion queue, a queue pair.
//! - `pingpong`: ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong.
//! - `perftest`: ib_write_bw, ib_read_bw, ib_send_bw, ib_atomic_bw with `-b`.
//! - `random`: the bytes that perftest fills its memory with.

mod end;
mod job;
mod perftest;
mod pingpong;
mod program;
mod random;
mod stream;

use std::fmt::Write as _;
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use verbless::Device;
use verbless::model::{FaultPlan, InProcess, Link, Model, Neighbour, Profile, Traffic, Uplink};
use verbless::prelude::*;
use verbless::queue::{Rc, Uc};

use job::{Job, Result, Server};
use program::{Kind, Program};

/// 0.27 s to a timeout: an emulated peer may be silent for half a second.
const ACK_TIMEOUT: u8 = 16;

/// Serves rdma-core's pingpongs and perftest's programs, which run on a device outside.
#[derive(Parser)]
#[command(name = "rxe-peer")]
struct Options {
    /// The socket that joins the model's switch: our end, which is bound, and the other end.
    #[arg(long, value_name = "LOCAL,REMOTE")]
    uplink: Uplink,
    /// The faults of the link. If the file loses frames, each program must lose some.
    #[arg(long, value_name = "FILE")]
    faults: Option<PathBuf>,
    /// The TCP port of the first program.
    #[arg(long)]
    port: u16,
    /// An IP address for our network device, after its link-local one.
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// The MAC of the peer, if it has an IP address.
    #[arg(long, value_name = "IP=MAC")]
    neighbour: Option<Neighbour>,
    /// The index of our GID.
    #[arg(long, default_value_t = 1)]
    gid: u8,
    /// The command line of each program, without device, port and GID.
    #[arg(required = true)]
    programs: Vec<Program>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(std::io::stderr)
        .init();
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAIL  {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &Options) -> Result {
    let card = Profile::load("connectx6dx")?.with_link(Link::Ethernet);
    let model = Model::builder().device(card).threaded().build();
    let plan = options.faults.as_deref().map(FaultPlan::load).transpose()?.unwrap_or_default();
    model.apply(&plan)?;
    let _outside = model.join_ethernet(&options.uplink)?;
    let lossy = !model.link(0, 1).faults.is_empty();
    let backend = InProcess::of(&model);
    if let Some(address) = options.address {
        backend.add_address(0, address)?;
    }
    if let Some(neighbour) = &options.neighbour {
        backend.add_neighbour(neighbour);
    }
    let device = Device::open(&backend, &backend.enumerate()?[0])?;
    let domain = Domain::new(&device)?;
    // They stay until all programs are done: a client without the last acknowledgement retransmits.
    let mut servers: Vec<Server> = Vec::new();
    for (port, program) in (options.port..).zip(&options.programs) {
        let before = model.traffic(0, 1);
        let job = Job {
            domain: &domain,
            listener: TcpListener::bind(("127.0.0.1", port))?,
            program,
            options: ConnectOptions {
                gid_index: Some(options.gid),
                ack_timeout: ACK_TIMEOUT,
                ..ConnectOptions::default()
            },
            lossy,
        };
        let served = match program.kind {
            Kind::RcPingpong => pingpong::connected::<Rc>(&job),
            Kind::UcPingpong => pingpong::connected::<Uc>(&job),
            Kind::UdPingpong => pingpong::datagrams(&job),
            Kind::Perftest(verb) => perftest::serve(&job, verb),
        };
        servers.push(served.map_err(|error| format!("{program}: {error}"))?);
        let carried = difference(before, model.traffic(0, 1));
        check_traffic(program, &carried, lossy).map_err(|error| format!("{program}: {error}"))?;
        println!("pass  {program}: {}", account(&carried));
    }
    Ok(())
}

/// The traffic of a link between two counts.
fn difference(before: [Traffic; 2], after: [Traffic; 2]) -> [Traffic; 2] {
    [0, 1].map(|at| Traffic {
        frames: after[at].frames - before[at].frames,
        bytes: after[at].bytes - before[at].bytes,
        lost: after[at].lost - before[at].lost,
        ..after[at]
    })
}

fn account(carried: &[Traffic; 2]) -> String {
    let mut text = String::new();
    for (direction, Traffic { frames, lost, .. }) in ["out", "in"].into_iter().zip(carried) {
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{frames} frames {direction}, {lost} of them lost");
    }
    text
}

/// Fails unless the data has crossed the link both ways, and, on a lossy link, frames were lost.
fn check_traffic(program: &Program, [out, into]: &[Traffic; 2], lossy: bool) -> Result {
    let min = (program.iterations * program.size) as u64;
    for (direction, traffic) in [("to the peer", out), ("from the peer", into)] {
        if traffic.bytes < min {
            let bytes = traffic.bytes;
            return Err(format!(
                "{bytes} bytes crossed the link {direction}; the program's data is {min}"
            )
            .into());
        }
    }
    if lossy && out.lost + into.lost == 0 {
        return Err("the link lost nothing: let the program send more".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judge_rejects_missing_traffic_and_losses() {
        let program: Program = "ib_write_bw -b -n 10 -s 1000".parse().unwrap();
        let carried = |bytes, lost| Traffic { bytes, lost, ..Traffic::default() };
        let is_accepted = |out, into, lossy| check_traffic(&program, &[out, into], lossy).is_ok();
        assert!(is_accepted(carried(10_000, 0), carried(10_000, 0), false));
        assert!(!is_accepted(carried(9_999, 0), carried(10_000, 0), false));
        assert!(!is_accepted(carried(10_000, 0), carried(9_999, 0), false));
        assert!(is_accepted(carried(10_000, 0), carried(10_000, 1), true));
        assert!(!is_accepted(carried(10_000, 0), carried(10_000, 0), true));
    }

    #[test]
    fn difference_counts_since_last_sample() {
        let at = |frames| Traffic { frames, bytes: 10 * frames, ..Traffic::default() };
        let carried = difference([at(3), at(4)], [at(5), at(9)]);
        assert_eq!(carried, [at(2), at(5)]);
    }
}
