//! Descendants of `run`, including daemons: `run` is a child subreaper.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::unistd::Pid;

use super::proc_stat::ProcStat;
use super::sys;
use verbless_model_kernel::remote::numbers;

/// The parent of a living process.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = ProcStat::read(pid).ok().filter(ProcStat::is_alive)?;
    stat.parent()
}

/// All living processes with their parents. An error: `/proc` cannot be read, for example because
/// no descriptor is free.
fn parents() -> Result<BTreeMap<i32, i32>, Errno> {
    let pids = numbers("/proc")?.into_iter();
    Ok(pids.filter_map(|pid| Some((pid, parent_of(pid)?))).collect())
}

/// The child of one of `roots` that the process descends from, or is.
fn branch(parents: &BTreeMap<i32, i32>, roots: &[Pid], pid: i32) -> Option<i32> {
    let mut at = pid;
    // Bounds the walk: a chain of parents is never longer than the table.
    for _ in 0..=parents.len() {
        let &parent = parents.get(&at)?;
        if roots.contains(&Pid::from_raw(parent)) {
            return Some(at);
        }
        at = parent;
    }
    None
}

/// The descendants of `roots`. An error: `/proc` cannot be read.
pub(super) fn below(roots: &[Pid]) -> Result<Vec<Pid>, Errno> {
    let parents = parents()?;
    let is_below = |&pid: &i32| branch(&parents, roots, pid).is_some();
    Ok(parents.keys().copied().filter(is_below).map(Pid::from_raw).collect())
}

/// All descendants except the guardian, with their parents. An error: `/proc` cannot be read.
fn all(guardian: Option<Pid>) -> Result<Vec<(i32, i32)>, Errno> {
    let (parents, guardian) = (parents()?, guardian.map(Pid::as_raw));
    let is_below = |&(&pid, _): &(&i32, &i32)| {
        let branch = branch(&parents, &[Pid::this()], pid);
        branch.is_some() && branch != guardian
    };
    Ok(parents.iter().filter(is_below).map(|(&pid, &parent)| (pid, parent)).collect())
}

/// Kills all descendants except the guardian. The guardian is a child that was not waited for, so
/// its pid is not reused. Returns whether some may be left, because they may have forked meanwhile.
pub(super) fn kill_all(guardian: Option<Pid>) -> bool {
    let Ok(left) = all(guardian) else { return true };
    for &(pid, parent) in &left {
        let Ok(pidfd) = sys::pidfd(Pid::from_raw(pid)) else { continue };
        // The pid may have been reused. A process with the same parent is a descendant too.
        if parent_of(pid).is_some_and(|now| now == parent) {
            sys::kill_by(pidfd.as_fd());
        }
    }
    !left.is_empty()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn descendant_may_have_any_name() {
        let script = r"printf 'a) \377' >/proc/$$/comm; echo; read line";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("the child writes");
        let (own, pid) = (Pid::this().as_raw(), child.id() as i32);
        assert_eq!(parent_of(pid), Some(own));
        assert!(all(None).expect("a list").contains(&(pid, own)));
        child.kill().and_then(|()| child.wait()).expect("the child exists");
    }
}
