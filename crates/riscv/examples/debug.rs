//! Runs an ELF file on the core, under a debugger if one is asked for.
//!
//! `debug FILE [--gdb PORT]`: the program begins at its entry point with a stack, and ends with
//! ECALL, whose a0 is its exit code. With `--gdb` it waits for a debugger on that TCP port of this
//! machine (0: any, which is printed): `gdb-multiarch FILE -ex 'target remote :PORT'`.

use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;

use verbless_riscv::gdb::{AfterExit, SessionEnd, is_same_user, serve};
use verbless_riscv::{AddressSpace, Exit, Hart, Permissions, Program, Ram, Region};

const STACK: u64 = 0xf000_0000;
const STACK_BYTES: u64 = 0x1_0000;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (file, port) = match &arguments[..] {
        [file] => (file, None),
        [file, flag, port] if flag == "--gdb" => (file, Some(port.parse::<u16>()?)),
        _ => return Err("usage: debug FILE [--gdb PORT]".into()),
    };
    let program = Program::parse(&std::fs::read(file)?)?;
    let entry = program.entry.ok_or("the program has no entry point")?;
    let stack = Region::ram(STACK, &Ram::new(STACK_BYTES), Permissions::RW);
    let mut hart = Hart::new(Arc::new(AddressSpace::new(program.regions().chain([stack]))?));
    hart.set_pc(entry);
    hart.set_x(2, STACK + STACK_BYTES);
    if let Some(port) = port {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        println!("waiting for a debugger on {}", listener.local_addr()?);
        let stream = loop {
            let (stream, peer) = listener.accept()?;
            if is_same_user(&stream)? {
                break stream;
            }
            eprintln!("a connection from {peer} is refused: it is another user's");
        };
        let ended = serve(stream, &mut hart, |hart, exit| match exit {
            Exit::Ecall => AfterExit::Exited(hart.x(10) as u8),
            _ => AfterExit::Continues,
        })?;
        match ended {
            SessionEnd::Detached => println!("the debugger has left"),
            SessionEnd::Killed => return Err("the debugger has ended the program".into()),
            SessionEnd::Exited(code) => return Ok(code.into()),
        }
    }
    loop {
        match hart.run(u64::MAX) {
            Exit::Ecall => return Ok((hart.x(10) as u8).into()),
            Exit::Trap(trap) => return Err(format!("{trap} at {:#x}", hart.pc()).into()),
            Exit::Ebreak => return Err(format!("EBREAK at {:#x}", hart.pc()).into()),
            _ => {}
        }
    }
}
