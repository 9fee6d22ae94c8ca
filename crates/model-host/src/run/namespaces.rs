//! Compares a program's root and namespaces with this process's.
//!
//! A thread that waits in a call keeps its namespaces: only the thread itself can change them.
//! Another thread can change its root (`CLONE_FS`, then `chroot`); the call is then answered
//! with the old root.

use std::fs;
use std::path::PathBuf;

use super::sys;

/// Whether a thread has the root and the mount namespace of this process: a path then means the
/// same in both.
pub(super) fn has_our_root(tid: u32) -> bool {
    let root = |of: &str| sys::status_at(&format!("/proc/{of}/root")).ok();
    let (ours, its) = (root("self"), root(&tid.to_string()));
    ours.is_some() && ours == its && is_shared(tid, "mnt")
}

/// Whether a thread has the network namespace of this process.
pub(super) fn has_our_network_namespace(tid: u32) -> bool {
    is_shared(tid, "net")
}

/// Whether a thread has the user namespace of this process. Capabilities in another one do not
/// count on the modelled devices.
pub(super) fn has_our_user_namespace(tid: u32) -> bool {
    is_shared(tid, "user")
}

fn is_shared(tid: u32, kind: &str) -> bool {
    let of =
        |whose: &str| -> Option<PathBuf> { fs::read_link(format!("/proc/{whose}/ns/{kind}")).ok() };
    let (ours, its) = (of("self"), of(&tid.to_string()));
    // A kernel without namespaces does not have the link.
    ours == its && (ours.is_some() || !fs::exists("/proc/self/ns").unwrap_or(true))
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::{Child, Command};

    use super::*;

    #[test]
    fn own_threads_share_root_network_and_users() {
        for tid in [std::process::id(), nix::unistd::gettid().as_raw() as u32] {
            assert!(
                has_our_root(tid) && has_our_network_namespace(tid) && has_our_user_namespace(tid)
            );
        }
        assert!(
            !has_our_root(u32::MAX)
                && !has_our_network_namespace(u32::MAX)
                && !has_our_user_namespace(u32::MAX)
        );
    }

    /// A process started by `unshare` with these options; `None`: forbidden here.
    pub(in super::super) fn spawn_unshared(options: &[&str]) -> Option<Child> {
        let mut command = Command::new("unshare");
        command.args(options);
        let mut allowed = Command::new("unshare");
        if !allowed.args(options).arg("true").output().is_ok_and(|it| it.status.success()) {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a test");
            let line = format!("skipped: {name}: unshare {} is refused\n", options.join(" "));
            std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes())
                .expect("stderr is open");
            return None;
        }
        let mut child = command.args(["sleep", "60"]).spawn().expect("the command runs");
        let name = format!("/proc/{}/comm", child.id());
        let start = std::time::Instant::now();
        while fs::read_to_string(&name).expect("the process is alive") != "sleep\n" {
            assert!(start.elapsed().as_secs() < 20, "it becomes sleep: {:?}", child.try_wait());
            std::thread::yield_now();
        }
        Some(child)
    }

    #[test]
    fn has_our_root_network_users_follow_unshare() {
        for (options, root, network, users) in [
            (&["--user", "--map-current-user"][..], true, true, false),
            (&["--user", "--map-current-user", "--net"], true, false, false),
            (&["--user", "--map-current-user", "--mount"], false, true, false),
        ] {
            let Some(mut child) = spawn_unshared(options) else { continue };
            let tid = child.id();
            let found =
                (has_our_root(tid), has_our_network_namespace(tid), has_our_user_namespace(tid));
            child.kill().and_then(|()| child.wait()).expect("the child exists");
            assert_eq!(found, (root, network, users), "{options:?}");
        }
    }
}
