//! The seccomp filter: which system calls trap to the supervisor.
//!
//! A filter sees register values, not the memory behind them. So every call with a path traps, and
//! continues at once if the path is outside the modelled tree. Other calls trap only if they
//! concern a device: an ioctl by its magic (the descriptor may be a duplicate anywhere), a call on
//! a descriptor by its number (devices get numbers that programs seldom use, see [`DESCRIPTORS`]).

use std::ops::Range;

/// Descriptor numbers of opened devices, by which the filter recognizes them: below 1024 for
/// programs that use `select`, or below 64 for programs with a low RLIMIT_NOFILE. If all are in
/// use, the device gets another number, and looks like a regular file there.
pub(super) const DESCRIPTORS: [Range<u32>; 2] = [960..1024, 48..64];

/// NETLINK_RDMA also enumerates devices; the kernel's own socket would show the machine's.
const NETLINK_RDMA: u32 = 20;
/// Ioctl types of RDMA devices and of fwctl.
const RDMA_MAGIC: u32 = 0x1b;
const FWCTL_MAGIC: u32 = 0x9a;

#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

const ALLOW: u32 = 0x7fff_0000;
const NOTIFY: u32 = 0x7fc0_0000;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
/// The low half of an argument (both architectures are little-endian).
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

/// Continues with the next instruction if the test holds, else skips `otherwise` instructions.
fn unless(code: u16, k: u32, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: otherwise, k }
}

/// Calls that take or return a path.
#[cfg(target_arch = "x86_64")]
const PATHS: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_open,
    libc::SYS_openat2,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_chdir,
    libc::SYS_getcwd,
];
#[cfg(not(target_arch = "x86_64"))]
const PATHS: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_chdir,
    libc::SYS_getcwd,
];
/// Calls with a descriptor, a path and flags, and the index of the flags argument. With
/// AT_EMPTY_PATH, they may concern the descriptor.
const STATS: &[(libc::c_long, u32)] = &[(libc::SYS_newfstatat, 3), (libc::SYS_statx, 2)];

/// Calls on a descriptor that a device answers differently from its memfd, and the index of the
/// descriptor argument.
const ON_DESCRIPTORS: [(libc::c_long, u32); 7] = [
    (libc::SYS_fstat, 0),
    (libc::SYS_dup, 0),
    (libc::SYS_mmap, 4),
    (libc::SYS_ftruncate, 0),
    (libc::SYS_fallocate, 0),
    // Emulated NETLINK_RDMA sockets have these numbers too.
    (libc::SYS_sendto, 0),
    (libc::SYS_sendmsg, 0),
];
/// The `fcntl` commands that duplicate a descriptor.
const DUPLICATES: [i32; 2] = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC];

/// Calls that execute another program, and the index of the environment argument.
const EXECS: [(libc::c_long, u32); 2] = [(libc::SYS_execve, 2), (libc::SYS_execveat, 3)];

/// AUDIT_ARCH of 32-bit calls, which 64-bit programs can make too, with their numbers of `execve`
/// and `execveat`.
#[cfg(target_arch = "x86_64")]
const COMPAT: (u32, [u32; 2]) = (0x4000_0003, [11, 358]);
#[cfg(target_arch = "aarch64")]
const COMPAT: (u32, [u32; 2]) = (0x4000_0028, [11, 387]);
/// Numbers of `execve` and `execveat` in x32. They have bit 30 set; kernels before 5.7 also accept
/// two numbers without it.
#[cfg(target_arch = "x86_64")]
const X32_EXECS: &[u32] = &[0x4000_0000 | 520, 0x4000_0000 | 545, 520, 545];
#[cfg(not(target_arch = "x86_64"))]
const X32_EXECS: &[u32] = &[];

/// Whether a trapped call is 32-bit or x32. All such calls are `execve` or `execveat`.
pub(super) fn is_foreign(architecture: u32, number: i32) -> bool {
    architecture != ARCHITECTURE || X32_EXECS.contains(&(number as u32))
}

/// The BPF program, for one architecture. Of another architecture (32-bit calls), only `execve` and
/// `execveat` trap.
///
/// `environment`: the environment pointer of the first `execve`. The filter allows that call,
/// because no supervisor answers yet.
pub(super) fn program(environment: u64) -> Vec<libc::sock_filter> {
    let descriptor = |argument_index: u32| {
        let mut body = vec![statement(LOAD, argument(argument_index))];
        for numbers in DESCRIPTORS {
            body.extend([
                unless(JUMP_AT_LEAST, numbers.start, 2),
                libc::sock_filter { code: JUMP_AT_LEAST, jt: 1, jf: 0, k: numbers.end },
                statement(RETURN, NOTIFY),
            ]);
        }
        body.push(statement(RETURN, ALLOW));
        body
    };
    let (compat, [exec, exec_at]) = COMPAT;
    let mut program = vec![
        statement(LOAD, ARCH),
        libc::sock_filter { code: JUMP_EQUAL, jt: 6, jf: 0, k: ARCHITECTURE },
        unless(JUMP_EQUAL, compat, 3),
        statement(LOAD, NUMBER),
        libc::sock_filter { code: JUMP_EQUAL, jt: 2, jf: 0, k: exec },
        libc::sock_filter { code: JUMP_EQUAL, jt: 1, jf: 0, k: exec_at },
        statement(RETURN, ALLOW),
        statement(RETURN, NOTIFY),
        statement(LOAD, NUMBER),
    ];
    let mut call = |number: libc::c_long, body: Vec<libc::sock_filter>| {
        program.push(unless(JUMP_EQUAL, number as u32, body.len() as u8));
        program.extend(body);
    };
    for (number, argument_index) in ON_DESCRIPTORS {
        call(number, descriptor(argument_index));
    }
    let [plain, close_on_exec] = DUPLICATES.map(|command| command as u32);
    let mut duplicates = vec![
        statement(LOAD, argument(1)),
        libc::sock_filter { code: JUMP_EQUAL, jt: 2, jf: 0, k: plain },
        libc::sock_filter { code: JUMP_EQUAL, jt: 1, jf: 0, k: close_on_exec },
        statement(RETURN, ALLOW),
    ];
    duplicates.extend(descriptor(0));
    call(libc::SYS_fcntl, duplicates);
    call(
        libc::SYS_ioctl,
        vec![
            statement(LOAD, argument(1)),
            statement(AND, 0xff00),
            libc::sock_filter { code: JUMP_EQUAL, jt: 1, jf: 0, k: RDMA_MAGIC << 8 },
            unless(JUMP_EQUAL, FWCTL_MAGIC << 8, 1),
            statement(RETURN, NOTIFY),
            statement(RETURN, ALLOW),
        ],
    );
    for &number in PATHS {
        call(number, vec![statement(RETURN, NOTIFY)]);
    }
    for &(number, flags) in STATS {
        let mut body = vec![
            statement(LOAD, argument(flags)),
            statement(AND, libc::AT_EMPTY_PATH as u32),
            libc::sock_filter { code: JUMP_EQUAL, jt: 2, jf: 0, k: 0 },
            statement(LOAD, argument(0)),
            unless(JUMP_EQUAL, libc::AT_FDCWD as u32, 1),
            statement(RETURN, NOTIFY),
        ];
        body.extend(descriptor(0));
        call(number, body);
    }
    for (number, argument_index) in EXECS {
        call(
            number,
            vec![
                statement(LOAD, argument(argument_index)),
                unless(JUMP_EQUAL, environment as u32, 3),
                statement(LOAD, argument(argument_index) + 4),
                unless(JUMP_EQUAL, (environment >> 32) as u32, 1),
                statement(RETURN, ALLOW),
                statement(RETURN, NOTIFY),
            ],
        );
    }
    for &number in X32_EXECS {
        call(number.into(), vec![statement(RETURN, NOTIFY)]);
    }
    call(
        libc::SYS_socket,
        vec![
            statement(LOAD, argument(0)),
            unless(JUMP_EQUAL, libc::AF_NETLINK as u32, 3),
            statement(LOAD, argument(2)),
            unless(JUMP_EQUAL, NETLINK_RDMA, 1),
            statement(RETURN, NOTIFY),
            statement(RETURN, ALLOW),
        ],
    );
    program.push(statement(RETURN, ALLOW));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENVIRONMENT: u64 = 0x5555_1234_5678;

    /// Evaluates the program for one call.
    fn verdict(architecture: u32, number: libc::c_long, arguments: [u64; 6]) -> u32 {
        let mut data = vec![];
        data.extend((number as u32).to_ne_bytes());
        data.extend(architecture.to_ne_bytes());
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        let load = |at: u32| {
            u32::from_ne_bytes(*data[at as usize..].first_chunk().expect("within the data"))
        };
        let program = program(ENVIRONMENT);
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let instruction = program[at];
            at += 1;
            let k = instruction.k;
            let mut jump = |holds: bool| {
                at += usize::from(if holds { instruction.jt } else { instruction.jf });
            };
            match instruction.code {
                LOAD => accumulator = load(k),
                AND => accumulator &= k,
                JUMP_EQUAL => jump(accumulator == k),
                JUMP_AT_LEAST => jump(accumulator >= k),
                RETURN => return k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn here(number: libc::c_long, arguments: [u64; 6]) -> u32 {
        verdict(ARCHITECTURE, number, arguments)
    }

    #[test]
    fn only_calls_with_a_path_notify() {
        for &number in PATHS {
            assert_eq!(here(number, [0; 6]), NOTIFY, "call {number}");
        }
        for number in [libc::SYS_read, libc::SYS_write, libc::SYS_lseek, libc::SYS_getppid] {
            assert_eq!(here(number, [1000; 6]), ALLOW, "call {number}");
        }
    }

    #[test]
    fn call_notifies_by_its_arguments() {
        let [netlink, inet] = [libc::AF_NETLINK, libc::AF_INET].map(|it| it as u64);
        let [cwd, empty] = [libc::AT_FDCWD, libc::AT_EMPTY_PATH].map(|it| it as u64);
        for (what, number, arguments, expected) in [
            ("ioctl of verbs", libc::SYS_ioctl, [3, 0xc018_1b01, 0, 0, 0, 0], NOTIFY),
            ("ioctl of fwctl", libc::SYS_ioctl, [3, 0x9a01, 0, 0, 0, 0], NOTIFY),
            ("ioctl of terminals", libc::SYS_ioctl, [3, 0x5401, 0, 0, 0, 0], ALLOW),
            ("ioctl behind fwctl's", libc::SYS_ioctl, [3, 0x9b01, 0, 0, 0, 0], ALLOW),
            ("netlink, RDMA", libc::SYS_socket, [netlink, 3, 20, 0, 0, 0], NOTIFY),
            ("netlink, routes", libc::SYS_socket, [netlink, 3, 0, 0, 0, 0], ALLOW),
            ("another family", libc::SYS_socket, [inet, 1, 20, 0, 0, 0], ALLOW),
            ("stat of the cwd", libc::SYS_newfstatat, [cwd, 0, 0, empty, 0, 0], NOTIFY),
            ("statx of the cwd", libc::SYS_statx, [cwd, 0, empty, 0, 0, 0], NOTIFY),
        ] {
            assert_eq!(here(number, arguments), expected, "{what}");
        }
    }

    #[test]
    fn fstat_notifies_for_device_descriptors_only() {
        let empty = libc::AT_EMPTY_PATH as u64;
        let of_devices = DESCRIPTORS.into_iter().flat_map(|numbers| {
            let (first, last) = (u64::from(numbers.start), u64::from(numbers.end) - 1);
            [(first, NOTIFY), (last, NOTIFY), (first - 1, ALLOW), (last + 1, ALLOW)]
        });
        for (descriptor, expected) in of_devices.chain([(3, ALLOW), (1 << 20, ALLOW)]) {
            let call = [descriptor, 0, 0, empty, 0, 0];
            assert_eq!(here(libc::SYS_newfstatat, call), expected, "{descriptor}");
            let call = [descriptor, 0, empty, 0, 0, 0];
            assert_eq!(here(libc::SYS_statx, call), expected, "{descriptor}");
            assert_eq!(here(libc::SYS_fstat, [descriptor, 0, 0, 0, 0, 0]), expected);
        }
        assert_eq!(here(libc::SYS_newfstatat, [3, 0, 0, 0, 0, 0]), NOTIFY);
        assert_eq!(here(libc::SYS_statx, [3, 0, 0, 0, 0, 0]), NOTIFY);
    }

    #[test]
    fn dup_and_mmap_notify_for_device_descriptors_only() {
        for (descriptor, expected) in [(3, ALLOW), (960, NOTIFY), (63, NOTIFY), (1024, ALLOW)] {
            for (number, index) in ON_DESCRIPTORS {
                let mut arguments = [0; 6];
                arguments[index as usize] = descriptor;
                assert_eq!(here(number, arguments), expected, "call {number} on {descriptor}");
            }
            for command in DUPLICATES {
                let call = [descriptor, command as u64, 0, 0, 0, 0];
                assert_eq!(here(libc::SYS_fcntl, call), expected, "{command} on {descriptor}");
            }
            let call = [descriptor, libc::F_GETFL as u64, 0, 0, 0, 0];
            assert_eq!(here(libc::SYS_fcntl, call), ALLOW, "on {descriptor}");
        }
        assert_eq!(here(libc::SYS_mmap, [0, 4096, 3, 0x22, u64::from(u32::MAX), 0]), ALLOW);
    }

    #[test]
    fn every_execve_notifies_but_the_first() {
        for (number, index) in EXECS {
            let with = |environment: u64| {
                let mut arguments = [ENVIRONMENT; 6];
                arguments[index as usize] = environment;
                here(number, arguments)
            };
            assert_eq!(with(ENVIRONMENT), ALLOW);
            for other in [0, ENVIRONMENT + 8, ENVIRONMENT + (1 << 32)] {
                assert_eq!(with(other), NOTIFY, "{other:#x}");
            }
        }
    }

    #[test]
    fn call_of_other_architecture_is_allowed() {
        assert_eq!(verdict(0x4000_0003, libc::SYS_openat, [0; 6]), ALLOW);
        assert_eq!(verdict(0x4000_0003, libc::SYS_execve, [0; 6]), ALLOW, "another call there");
        assert_eq!(verdict(0xc000_0016, 11, [0; 6]), ALLOW, "of no processor of ours");
    }

    #[test]
    fn execve_of_32_bits_notifies() {
        let (compat, execs) = COMPAT;
        for number in execs {
            // The first `execve` is native, so the environment does not matter.
            for environment in [0, ENVIRONMENT] {
                assert_eq!(verdict(compat, number.into(), [environment; 6]), NOTIFY, "{number}");
            }
            assert!(is_foreign(compat, number as i32));
        }
        for &number in X32_EXECS {
            assert_eq!(here(number.into(), [ENVIRONMENT; 6]), NOTIFY, "{number:#x}");
            assert!(is_foreign(ARCHITECTURE, number as i32), "{number:#x}");
        }
        let others = PATHS.iter().chain(EXECS.iter().map(|(number, _)| number));
        for &number in others {
            assert!(!is_foreign(ARCHITECTURE, number as i32), "{number}");
        }
        assert_eq!(here(11, [0; 6]), ALLOW, "munmap");
    }
}
