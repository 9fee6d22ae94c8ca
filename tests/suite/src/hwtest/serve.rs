//! `hwtest serve`: the other end of `hwtest --connect`, and a role in its own process.

use std::error::Error;
use std::io::{self, Write};
use std::net::TcpListener;
use std::sync::Arc;

use nix::sys::signal::{SigSet, Signal};
use verbless_conformance::roles::{self, About, Program, Server};
use verbless_conformance::{Choice, Examination, Host, Lab, Stop, examine};

use crate::options::{RoleOptions, ServeOptions};
use crate::versions;

/// Serves clients until SIGINT or SIGTERM; returns false if the device is not usable.
pub(crate) fn run(options: &ServeOptions) -> Result<bool, Box<dyn Error>> {
    // Before there are threads: all of them leave the signals to the one that waits for them.
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    let Some((lab, about)) = end(&options.on.one_end())? else { return Ok(false) };
    let address = roles::with_port(&options.address);
    let listener = TcpListener::bind(&address).map_err(|error| format!("{address}: {error}"))?;
    let program = Program::this(options.on.of_role())?;
    let server = Server::new(lab, &about, program, versions::line(), show);
    let server = Arc::new(server.map_err(|Stop(why)| why)?);
    let waiting = server.clone();
    std::thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            waiting.kill_role();
            show(&format!("Ended by {signal}"));
            std::process::exit(0);
        }
    });
    show(&format!("Serving {} {} on {}", about.sort(), about.device, listener.local_addr()?));
    server.serve(&listener, options.once).map_err(|Stop(why)| why)?;
    Ok(true)
}

/// One end of the cases of two machines, and what it says of itself; `None` if its device is not
/// usable, which is then shown.
pub(crate) fn end(choice: &Choice) -> Result<Option<(Lab, About)>, Box<dyn Error>> {
    let Examination { chain, lab } = examine(choice, &Host::new()).map_err(|Stop(what)| what)?;
    let Some(lab) = lab.filter(|_| chain.failure().is_none()) else {
        show(&chain.verdict());
        return Ok(None);
    };
    if lab.is_private() {
        return Err(
            "the model in this process has no link to another one: take a device behind a \
                    kernel, or start this under `verbless-model run`"
                .into(),
        );
    }
    let mut preconditions = lab.preconditions();
    preconditions.extend(chain.brief().lines().map(|line| line.trim().to_string()));
    let about = About::of(&lab, preconditions).map_err(|Stop(why)| why)?;
    Ok(Some((lab.with_two_processes(), about)))
}

/// Plays one role.
pub(crate) fn role(options: &RoleOptions) -> Result<bool, Box<dyn Error>> {
    let RoleOptions { on, case, side, life } = options;
    roles::play(&on.one_end(), case, *side, *life).map_err(|Stop(why)| why)?;
    Ok(true)
}

/// Shows a line. The server goes on if standard output is closed.
pub(crate) fn show(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
