//! What rights we have, by name. Probes are tested by trying; this only says what to ask for when trying failed.

/// Capabilities that the kernel side needs, with what for (kernel/bpf/syscall.c, kernel/events/core.c).
pub const WANTED: [(u32, &str, &str); 4] = [
    (39, "CAP_BPF", "loading programs and maps"),
    (38, "CAP_PERFMON", "tracing programs and reading kernel memory"),
    (34, "CAP_SYSLOG", "kernel symbols (kptr_restrict)"),
    (21, "CAP_SYS_ADMIN", "run-time statistics, and everything above on kernels before 5.8"),
];

/// Capabilities of [`WANTED`] that this process lacks.
pub fn missing() -> Vec<(&'static str, &'static str)> {
    let effective = effective().unwrap_or(0);
    let lacks = WANTED.into_iter().filter(|(bit, _, _)| effective & (1 << bit) == 0);
    lacks.map(|(_, name, purpose)| (name, purpose)).collect()
}

fn effective() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Whether this user can be expected to run probes: the advice is then another one.
pub fn is_root() -> bool {
    // SAFETY: reads our own effective user.
    unsafe { libc::geteuid() == 0 }
}
