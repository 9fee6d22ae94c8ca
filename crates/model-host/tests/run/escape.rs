//! Programs that try to leave their root, or to use the rights of `run`, through the files that it
//! serves. `docs/run-security.md` names these tests.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::{env, fs};

use super::fuse::Server;
use super::{command, skipped};

pub(super) const ATTACK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/escape.py");
/// A user and group id without a name.
const OTHER: u32 = 54321;

/// A directory with a secret outside the sandboxes; removed on drop.
struct Secret(PathBuf);

impl Secret {
    fn new(test: &str) -> Self {
        let place = Path::new("/var/tmp").join(format!("verbless-{test}-{}", std::process::id()));
        fs::create_dir(&place).expect("a new directory");
        for name in ["secret", "moved", "gone"] {
            fs::write(place.join(name), "secret").expect("a file");
        }
        symlink("secret", place.join("link")).expect("a link");
        fs::copy("/bin/true", place.join("program")).expect("a program");
        // Any user may access the directory: only a program's root keeps the program out.
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777))
            .expect("this user owns the directory");
        Self(place)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }

    /// Asserts that the attacks changed nothing.
    fn assert_untouched(&self) {
        let mut names: Vec<_> = fs::read_dir(&self.0)
            .expect("a directory")
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["gone", "link", "moved", "program", "secret"]);
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Command line of a sandbox with this machine's programs but none of its other files. `None`: no
/// sandbox with Python here.
fn sandbox(more: &str) -> Option<Vec<String>> {
    let usual = "bwrap --unshare-pid --unshare-ipc --unshare-uts --ro-bind /usr /usr --symlink \
        usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dir /tmp";
    let mut words: Vec<String> = usual.split_whitespace().map(str::to_string).collect();
    words.extend(["--ro-bind".into(), ATTACK.into(), "/attack.py".into()]);
    words.extend(more.split_whitespace().map(str::to_string));
    let mut probe = Command::new("bwrap");
    let works = probe.args(&words[1..]).args(["python3", "-c", ""]).output();
    match works {
        Ok(output) if output.status.success() => Some(words),
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            skipped(&format!("no sandbox with python3 here: {}", errors.trim_end()));
            None
        }
        Err(error) => {
            skipped(&format!("bwrap: {error}"));
            None
        }
    }
}

/// The arguments of attacks.
fn attacks(secret: &Secret, names: &str) -> [String; 4] {
    let inode = fs::metadata(&secret.0).expect("a directory").ino().to_string();
    ["/attack.py".into(), secret.path().into(), names.into(), inode]
}

/// Runs python with these arguments in a sandbox behind `run`.
fn run_attacks(sandbox: &[String], arguments: &[String]) -> Output {
    let words: Vec<&str> = sandbox
        .iter()
        .map(String::as_str)
        .chain(["python3"])
        .chain(arguments.iter().map(String::as_str))
        .collect();
    command(&[], &words).output().expect("the binary runs")
}

/// Asserts that all attacks ran and none succeeded.
fn assert_no_leak(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.ends_with("done\n"), "{text}{errors}");
    let leaks: Vec<_> = text.lines().filter(|line| line.contains("LEAK")).collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}

#[test]
fn dotdot_of_a_given_directory_stays_in_the_tree() {
    let secret = Secret::new("up");
    let Some(sandbox) = sandbox("--dev /dev --dir /sys/class") else { return };
    assert_no_leak(&run_attacks(&sandbox, &attacks(&secret, "listing,up,change")));
    secret.assert_untouched();
}

#[test]
fn links_in_program_root_are_not_followed() {
    let secret = Secret::new("links");
    // A link out of the tree at every component of a path.
    for place in [
        "--symlink SECRET /dev --dir /sys --symlink SECRET /sys/class",
        "--dev /dev --symlink SECRET /sys",
        "--symlink /proc/self/root/SECRET /dev --symlink /proc/1/root/SECRET /sys",
        "--symlink /proc/self/fd/0 /dev --symlink /proc/self/cwd /sys",
    ] {
        let place = place.replace("SECRET", secret.path());
        let Some(sandbox) = sandbox(&place) else { return };
        assert_no_leak(&run_attacks(&sandbox, &attacks(&secret, "listing,change")));
    }
    secret.assert_untouched();
}

#[test]
fn replaced_proc_grants_no_access() {
    let secret = Secret::new("proc");
    let links: Vec<String> = ["self", "thread-self", "1", "2", "3"]
        .iter()
        .flat_map(|name| {
            ["root", "cwd"].map(|it| format!("--symlink {} /proc/{name}/{it}", secret.path()))
        })
        .collect();
    let place = format!("--tmpfs /proc {} --dev /dev --dir /sys/class", links.join(" "));
    let Some(sandbox) = sandbox(&place) else { return };
    assert_no_leak(&run_attacks(&sandbox, &attacks(&secret, "listing,change")));
    secret.assert_untouched();
}

#[test]
fn racing_thread_gains_nothing() {
    let secret = Secret::new("race");
    for place in ["--dev /dev --dir /sys/class", "--symlink SECRET /dev --dir /sys"] {
        let place = place.replace("SECRET", secret.path());
        let Some(sandbox) = sandbox(&place) else { return };
        assert_no_leak(&run_attacks(&sandbox, &attacks(&secret, "race")));
    }
    secret.assert_untouched();
}

#[test]
fn tree_files_cannot_be_changed_or_mounted() {
    let secret = Secret::new("write");
    let Some(sandbox) = sandbox("--dev /dev --dir /sys/class") else { return };
    assert_no_leak(&run_attacks(&sandbox, &attacks(&secret, "write,mount")));
}

#[test]
fn netlink_socket_stays_in_its_network() {
    let secret = Secret::new("network");
    let Some(sandbox) = sandbox("--unshare-net --dev /dev") else { return };
    assert_no_leak(&run_attacks(&sandbox, &attacks(&secret, "network")));
}

/// The control socket of the run `name`.
pub(super) fn socket_of(name: &str) -> String {
    let user = nix::unistd::geteuid();
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|place| {
        let is_own = |it: fs::Metadata| it.uid() == user.as_raw() && it.mode() & 0o077 == 0;
        fs::symlink_metadata(place).is_ok_and(is_own)
    });
    match own {
        Some(place) => format!("{}/verbless-model/{name}", place.display()),
        None => format!("/tmp/verbless-runs-{user}/{name}"),
    }
}

/// Starts a run of this name, which ends with its standard input.
pub(super) fn start_named_run(name: &str) -> Child {
    let mut host = command(&["--name", name], &["sh", "-c", "echo up; read forever"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut line = String::new();
    let mut output = std::io::BufReader::new(host.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut output, &mut line).expect("the host prints a line");
    host
}

#[test]
fn non_seccomp_descriptor_is_rejected_as_filter() {
    let Some(server) = Server::start("filter") else { return };
    let name = format!("filter-{}", std::process::id());
    let mut host = start_named_run(&name);
    let python = "import os, socket, sys\n\
        run = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        run.connect(sys.argv[1])\n\
        run.send(b'join 1 host')\n\
        print(run.recv(1000).decode())\n\
        socket.send_fds(run, [b'program'], [os.open(sys.argv[2], os.O_RDWR)])\n\
        print(run.recv(1000).decode())\n";
    let output = Command::new("/usr/bin/python3")
        .args(["-c", python, &socket_of(&name)])
        .arg(server.file())
        .output()
        .expect("python runs");
    drop(host.stdin.take());
    host.wait().expect("the process ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, "yes\n\n", "it is disconnected: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn joining_program_is_given_no_directory() {
    let secret = Secret::new("join");
    let Some(sandbox) = sandbox("--dev /dev") else { return };
    let name = format!("escape-{}", std::process::id());
    let mut host = start_named_run(&name);
    let socket = socket_of(&name);
    let place = Path::new(&socket).parent().expect("a directory");
    let within = |shown: &[&Path]| {
        Command::new(&sandbox[0])
            .args(&sandbox[1..])
            .args(shown)
            .arg("python3")
            .args([&attacks(&secret, "join")[..], std::slice::from_ref(&socket)].concat())
            .output()
            .expect("bwrap runs")
    };
    let tried = within(&["--ro-bind".as_ref(), place, place]);
    // A sandbox without the directory of runs can neither join a run nor pose as one.
    let hidden = within(&[]);
    let text = String::from_utf8_lossy(&hidden.stdout);
    assert!(text.contains("no run"), "{text}");
    drop(host.stdin.take());
    host.wait().expect("the process ends");
    assert_no_leak(&tried);
    let text = String::from_utf8_lossy(&tried.stdout);
    assert!(text.contains("yes"), "the run answered: {text}");
}

/// Runs a program as another user, in this root or in `chroot`. `None`: only root can.
fn as_other_user(words: &[&str], chroot: Option<&Path>) -> Option<Output> {
    if !nix::unistd::geteuid().is_root() {
        skipped("only root can start programs of another user");
        return None;
    }
    let id = OTHER.to_string();
    let mut start = vec!["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
    if let Some(root) = chroot {
        let root = root.to_str().expect("text");
        start = vec!["chroot", "--userspec", "54321:54321", "--groups", "", root];
    }
    let words = [&start[..], words].concat();
    Some(command(&[], &words).output().expect("the binary runs"))
}

#[test]
fn other_user_is_given_only_the_tree() {
    let secret = Secret::new("user");
    let inode = fs::metadata(&secret.0).expect("a directory").ino().to_string();
    fs::set_permissions(&secret.0, fs::Permissions::from_mode(0o700))
        .expect("this user owns the directory");
    let attacks = "listing,up,change,race,write,mount";
    let attack = env::temp_dir().join(format!("attack-{}.py", std::process::id()));
    fs::copy(ATTACK, &attack).expect("a file");
    let words =
        ["/usr/bin/python3", attack.to_str().expect("text"), secret.path(), attacks, &inode];
    let output = as_other_user(&words, None);
    fs::remove_file(attack).expect("the file exists");
    let Some(output) = output else { return };
    assert_no_leak(&output);
    secret.assert_untouched();
    // A root whose links lead to root's directories.
    let place = Secret::new("root");
    let root = place.0.join("new");
    for name in ["usr", "lib", "lib64", "bin", "proc", "tmp", "etc"] {
        fs::create_dir_all(root.join(name)).expect("a directory");
    }
    symlink(secret.path(), root.join("dev")).expect("a link");
    symlink("/root", root.join("sys")).expect("a link");
    let script = format!(
        "mount --bind /usr {0}/usr && for at in lib lib64 bin; do mount --bind /$at {0}/$at; \
         done && mount -t proc proc {0}/proc && cp {ATTACK} {0}/attack.py && exec \"$@\"",
        root.display()
    );
    let inside = ["/usr/bin/python3", "/attack.py", secret.path(), "listing,change", &inode];
    let chroot = ["chroot", "--userspec", "54321:54321", root.to_str().expect("text")];
    let words = [&["unshare", "--mount", "sh", "-c", &script, "sh"], &chroot[..], &inside].concat();
    let output = command(&[], &words).output().expect("the binary runs");
    assert_no_leak(&output);
}

#[test]
fn unprivileged_run_serves_the_tree() {
    // As an unprivileged user: in its own user namespace, where namespaces are allowed.
    if !nix::unistd::geteuid().is_root() {
        return skipped("only root can start programs of another user");
    }
    let place = env::temp_dir().join(format!("binary-{}", std::process::id()));
    fs::copy(env!("CARGO_BIN_EXE_verbless-model"), &place).expect("a copy");
    let id = OTHER.to_string();
    let program = "ls /sys/class/infiniband/.. /dev/infiniband; cd /dev/infiniband; pwd -P; cd ..; \
        cat /sys/class/infiniband/mlx5_0/node_type; exec 5<>/dev/infiniband/uverbs0";
    let output = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
        .arg(&place)
        .args(["run", "--", "sh", "-c", program])
        .output()
        .expect("setpriv runs");
    fs::remove_file(place).expect("the file exists");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("infiniband_verbs\n") && text.contains("/dev/infiniband\n1: CA\n"));
}

#[test]
fn security_docs_name_existing_tests() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates");
    let docs = fs::read_to_string(crates.join("../docs/run-security.md")).expect("a file");
    let mut found = 0;
    for line in docs.lines().filter(|line| line.starts_with("| ") && !line.contains("| test |")) {
        let tests = line.trim_end_matches(" |").rsplit(" | ").next().expect("a cell");
        for test in tests.split(", ") {
            let name = test.trim_matches('`');
            let (module, function) = name.split_once("::").expect("a module and a test");
            let files = [
                format!("model-host/src/run/{module}.rs"),
                format!("model-host/src/run/{module}/tests.rs"),
                format!("model-host/tests/run/{module}.rs"),
                format!("model-host/tests/{module}.rs"),
                format!("model/src/memory/{module}.rs"),
                format!("model-kernel/src/tests/{module}.rs"),
                format!("model-kernel/src/{module}.rs"),
            ];
            let has = |file: &String| {
                let text = fs::read_to_string(crates.join(file)).unwrap_or_default();
                text.contains(&format!("fn {function}("))
            };
            assert!(files.iter().any(has), "{name}");
            found += 1;
        }
    }
    assert!(found > 25, "{found}");
}
