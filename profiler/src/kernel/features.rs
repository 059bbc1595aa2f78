//! What this host is and what its kernel lets a lock profiler see: hypervisor, spinlock implementation, tick, CPUs and
//! the switches that guard tracing. For `doctor`, for headers of recordings and for sizing maps.
//!
//! Everything is read (files, `uname`, `clock_getres`, CPUID), nothing is tried or changed, and no decision is made
//! from a kernel version. What cannot be read is `None` or `Unknown`, never a guess.

use std::{
    ffi::CStr,
    fs::{self, File},
    io::{BufRead, BufReader},
    mem::MaybeUninit,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::kallsyms::Kallsyms;

/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Which waits for spinlocks the kernel's `lock:contention_begin` reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "reason", rename_all = "snake_case")]
pub enum SpinVisibility {
    /// Native queued spinlocks: only the third contender and later ones, which queue, are reported; the second one
    /// waits on the pending bit unseen (`kernel/locking/qspinlock.c`, before the label `queue`).
    Queued,
    /// Paravirtual queued spinlocks, which have no pending bit: every slow-path wait is reported (the label
    /// `pv_queue` of the same file).
    Paravirt,
    /// None: this guest spins on a test-and-set lock (`virt_spin_lock` in `arch/x86/include/asm/qspinlock.h`).
    Invisible(String),
    /// It could not be told, and why.
    Unknown(String),
}

/// This host. All of it is the state at the time of [`Features::read`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Features {
    /// `uname -r`.
    pub release: String,
    /// `uname -v`.
    pub version: String,
    /// `uname -n`.
    pub hostname: String,
    /// `uname -m`, e.g. `x86_64`.
    pub machine: String,
    /// The hypervisor's CPUID signature, e.g. `KVMKVMKVM`; `None` on bare metal, empty if the hypervisor has none.
    pub hypervisor: Option<String>,
    /// What is seen of spinlocks.
    pub spin_visibility: SpinVisibility,
    /// Whether the kernel is `PREEMPT_RT`: spinlocks and rwlocks are sleeping locks then.
    pub preempt_rt: bool,
    /// Preemption: the mode in force (`none`, `voluntary`, `full`, `lazy`) where debugfs shows it, else the word in
    /// `uname -v` (`PREEMPT_DYNAMIC` leaves the mode open); `None` without either.
    pub preempt: Option<String>,
    /// Timer interrupts a second (`CONFIG_HZ`); `None` when it cannot be told.
    pub hz: Option<u64>,
    /// CPUs that may ever exist: the length of per-CPU arrays (largest number plus one).
    pub possible_cpus: u32,
    /// CPUs that run now.
    pub online_cpus: u32,
    /// CPUs that the scheduler keeps free (isolcpus, nohz_full).
    pub isolated_cpus: Vec<u32>,
    /// Kernel lockdown: `none`, `integrity` or `confidentiality`; `None` without that security module.
    pub lockdown: Option<String>,
    /// `kernel.kptr_restrict`.
    pub kptr_restrict: Option<i64>,
    /// `kernel.perf_event_paranoid`.
    pub perf_event_paranoid: Option<i64>,
    /// Whether kprobes can be attached as perf events (`/sys/bus/event_source/devices/kprobe`).
    pub kprobes: bool,
    /// Bytes of a page.
    pub page_size: u64,
}

impl Features {
    /// Reads everything.
    ///
    /// # Errors
    /// `uname` fails, or the CPUs under `/sys/devices/system/cpu` cannot be read: without their number nothing can be
    /// sized. All else may be missing.
    pub fn read(symbols: &Kallsyms) -> Result<Features> {
        let names = Uname::read()?;
        let possible_cpus = cpus("possible")?.1;
        let hypervisor = hypervisor();
        Ok(Features {
            spin_visibility: Spin::of_this_host(symbols, hypervisor.clone(), possible_cpus).visibility(),
            hypervisor: hypervisor.map(|found| found.signature),
            preempt: preempt(&names.version),
            preempt_rt: is_realtime(&names.version),
            hz: hz(),
            possible_cpus,
            online_cpus: cpus("online")?.0,
            isolated_cpus: isolated_cpus(),
            lockdown: word("/sys/kernel/security/lockdown").as_deref().and_then(chosen).map(str::to_owned),
            kptr_restrict: number("/proc/sys/kernel/kptr_restrict"),
            perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
            kprobes: Path::new("/sys/bus/event_source/devices/kprobe/type").exists(),
            page_size: page_size(),
            release: names.release,
            version: names.version,
            hostname: names.hostname,
            machine: names.machine,
        })
    }

    /// How long a waiter of an rwsem waits before it demands the lock, in nanoseconds: `RWSEM_WAIT_TIMEOUT`
    /// (`kernel/locking/rwsem.c`), which is `DIV_ROUND_UP(HZ, 250)` ticks. `None` when the tick is unknown.
    pub fn handoff_timeout_ns(&self) -> Option<u64> {
        let hz = self.hz.filter(|&hz| hz > 0)?;
        Some(hz.div_ceil(250) * SECOND_NS / hz)
    }
}

struct Uname {
    release: String,
    version: String,
    hostname: String,
    machine: String,
}

impl Uname {
    fn read() -> Result<Uname> {
        let mut names = MaybeUninit::<libc::utsname>::zeroed();
        // SAFETY: uname(2) writes one `utsname` to the valid, exclusive place it is given.
        let failed = unsafe { libc::uname(names.as_mut_ptr()) };
        ensure!(failed == 0, "uname: {}", std::io::Error::last_os_error());
        // SAFETY: zero bytes are a valid `utsname`, and the call above has filled it.
        let names = unsafe { names.assume_init() };
        Ok(Uname {
            release: c_text(&names.release),
            version: c_text(&names.version),
            hostname: c_text(&names.nodename),
            machine: c_text(&names.machine),
        })
    }
}

/// The text before the first NUL, or nothing if there is none.
fn c_text(field: &[libc::c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|&letter| letter.to_ne_bytes()[0]).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// A small file without the white space around it; `None` when it cannot be read.
fn word(file: &str) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

fn number(file: &str) -> Option<i64> {
    word(file)?.parse().ok()
}

/// The chosen one of a list such as `none [integrity] confidentiality` or `none voluntary (full)`.
fn chosen(list: &str) -> Option<&str> {
    list.split_ascii_whitespace().find_map(|word| {
        let square = word.strip_prefix('[').and_then(|word| word.strip_suffix(']'));
        square.or_else(|| word.strip_prefix('(').and_then(|word| word.strip_suffix(')')))
    })
}

/// How many CPUs a list such as `0-3,8` names, and its largest number plus one.
fn cpu_list(list: &str) -> Option<(u32, u32)> {
    let mut found = (0u32, 0u32);
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let end = last.checked_add(1)?;
        found = (found.0.checked_add(end.checked_sub(first)?)?, found.1.max(end));
    }
    Some(found)
}

fn cpus(which: &str) -> Result<(u32, u32)> {
    let file = format!("/sys/devices/system/cpu/{which}");
    let list = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    cpu_list(&list).with_context(|| format!("{file} is no list of CPUs: `{}`", list.trim()))
}

/// `cpu_is_isolated` (include/linux/sched/isolation.h): both lists together.
fn isolated_cpus() -> Vec<u32> {
    let mut cpus: Vec<u32> = ["isolated", "nohz_full"]
        .iter()
        .filter_map(|which| fs::read_to_string(format!("/sys/devices/system/cpu/{which}")).ok())
        .flat_map(|list| cpu_numbers(&list))
        .collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// The numbers of a list such as `2-5,8`; what is no number (`(null)`) is left out.
fn cpu_numbers(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

fn is_realtime(version: &str) -> bool {
    word("/sys/kernel/realtime").as_deref() == Some("1") || version.contains("PREEMPT_RT")
}

/// The mode in force (`kernel/sched/debug.c`, `sched_dynamic_show`), else how the kernel was built.
fn preempt(version: &str) -> Option<String> {
    let mode = word("/sys/kernel/debug/sched/preempt").as_deref().and_then(chosen).map(str::to_owned);
    mode.or_else(|| built_preempt(version).map(str::to_owned))
}

fn built_preempt(version: &str) -> Option<&str> {
    version.split_ascii_whitespace().find(|word| word.starts_with("PREEMPT"))
}

/// The resolution of the coarse clock is one tick (`posix_get_coarse_res` in `kernel/time/posix-timers.c`).
fn hz() -> Option<u64> {
    let mut tick = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_getres(2) writes one `timespec` to the valid, exclusive place it is given.
    let failed = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut tick) };
    (failed == 0 && tick.tv_sec == 0).then(|| hz_of(u64::try_from(tick.tv_nsec).ok()?)).flatten()
}

/// Ticks a second; the kernel rounds the length of a tick to a nanosecond, which is undone here.
fn hz_of(tick_ns: u64) -> Option<u64> {
    // A coarse clock finer than 10 µs is not a tick: some sandboxes emulate the call.
    (tick_ns >= 10_000).then(|| (SECOND_NS + tick_ns / 2) / tick_ns)
}

fn page_size() -> u64 {
    // SAFETY: sysconf(3) takes and returns numbers only.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

/// A hypervisor as CPUID shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hypervisor {
    /// The signature of its first leaf, without padding, e.g. `KVMKVMKVM`.
    signature: String,
    /// What decides about its guest's spinlocks.
    spin: HypervisorSpin,
}

/// What the kernel looks at before it turns paravirtual spinlocks on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HypervisorSpin {
    /// `kvm_spinlock_init` in `arch/x86/kernel/kvm.c`.
    Kvm {
        /// `KVM_FEATURE_PV_UNHALT`.
        unhalt: bool,
        /// `KVM_HINTS_REALTIME`: every virtual CPU has a CPU of its own.
        dedicated: bool,
    },
    /// `hv_init_spinlocks` in `arch/x86/hyperv/hv_spinlock.c`.
    HyperV {
        /// Both `HV_X64_CLUSTER_IPI_RECOMMENDED` and `HV_MSR_GUEST_IDLE_AVAILABLE`.
        enlightened: bool,
    },
    /// `xen_init_spinlocks` in `arch/x86/xen/spinlock.c`; depends on things user space does not see.
    Xen,
    /// One for which Linux has no paravirtual spinlocks.
    Other,
}

/// Everything that decides about spinlocks, as plain data.
struct Spin {
    /// Whether virtual machines of this architecture have a spinlock of their own at all.
    x86: bool,
    hypervisor: Option<Hypervisor>,
    possible_cpus: u32,
    cmdline: String,
    /// `None` when the symbol table is unreadable.
    symbols: Option<SpinSymbols>,
}

/// What the symbol table says about the build.
#[derive(Debug, Clone, Copy)]
struct SpinSymbols {
    /// Queued spinlocks (`CONFIG_QUEUED_SPINLOCKS`).
    queued: bool,
    /// `CONFIG_PARAVIRT_SPINLOCKS`.
    paravirt: bool,
    /// `CONFIG_PARAVIRT`, under which `virt_spin_lock` exists.
    virt: bool,
}

impl SpinSymbols {
    fn of(symbols: &Kallsyms) -> Option<SpinSymbols> {
        // A table without a single function is no evidence; hidden addresses do not matter here.
        symbols.contains("schedule").then(|| SpinSymbols {
            queued: symbols.contains("native_queued_spin_lock_slowpath")
                || symbols.contains("queued_spin_lock_slowpath"),
            paravirt: symbols.contains("__pv_queued_spin_lock_slowpath"),
            virt: symbols.contains("native_pv_lock_init"),
        })
    }
}

impl Spin {
    fn of_this_host(symbols: &Kallsyms, hypervisor: Option<Hypervisor>, possible_cpus: u32) -> Spin {
        Spin {
            x86: cfg!(target_arch = "x86_64"),
            hypervisor,
            possible_cpus,
            cmdline: word("/proc/cmdline").unwrap_or_default(),
            symbols: SpinSymbols::of(symbols),
        }
    }

    fn visibility(&self) -> SpinVisibility {
        let Some(symbols) = self.symbols else {
            return unknown("/proc/kallsyms does not tell how spinlocks were built");
        };
        if !symbols.queued {
            return unknown("this kernel has no queued spinlocks");
        }
        match &self.hypervisor {
            Some(hypervisor) if self.x86 => self.in_guest(symbols, hypervisor),
            _ => SpinVisibility::Queued,
        }
    }

    /// `native_pv_lock_init` (`arch/x86/kernel/paravirt.c`) turns test-and-set on in every guest; the hypervisor's own
    /// code may turn it off or replace it later in the boot.
    fn in_guest(&self, symbols: SpinSymbols, hypervisor: &Hypervisor) -> SpinVisibility {
        if !symbols.paravirt {
            return if symbols.virt {
                invisible("a guest of a kernel without CONFIG_PARAVIRT_SPINLOCKS")
            } else {
                unknown("a guest whose kernel shows no paravirtual code")
            };
        }
        // `nopv` keeps the kernel from using the hypervisor's interface; only Xen may ignore it (`ignore_nopv`).
        if self.has_option("nopv") && hypervisor.spin != HypervisorSpin::Xen {
            return invisible("`nopv` on the kernel's command line");
        }
        match hypervisor.spin {
            HypervisorSpin::Kvm { unhalt, dedicated } => self.under_kvm(unhalt, dedicated),
            HypervisorSpin::HyperV { enlightened } => self.under_hyperv(enlightened),
            HypervisorSpin::Xen => unknown("a Xen guest: its spinlocks depend on how the guest was started"),
            HypervisorSpin::Other => invisible(&format!(
                "a guest of `{}`, which has no paravirtual spinlocks",
                hypervisor.signature
            )),
        }
    }

    /// The order of `kvm_spinlock_init`: the first three turn test-and-set off, the fourth leaves it on.
    fn under_kvm(&self, unhalt: bool, dedicated: bool) -> SpinVisibility {
        if dedicated || self.possible_cpus == 1 || self.has_option("nopvspin") {
            SpinVisibility::Queued
        } else if unhalt {
            SpinVisibility::Paravirt
        } else {
            invisible("a KVM guest without the feature kvm-pv-unhalt")
        }
    }

    fn under_hyperv(&self, enlightened: bool) -> SpinVisibility {
        if self.has_option("hv_nopvspin") {
            invisible("`hv_nopvspin` on the kernel's command line of a Hyper-V guest")
        } else if enlightened {
            SpinVisibility::Paravirt
        } else {
            invisible("a Hyper-V guest without paravirtual spinlocks")
        }
    }

    /// Whether a flag is on the kernel's command line; what follows `--` is init's.
    fn has_option(&self, option: &str) -> bool {
        let mut kernel = self.cmdline.split_ascii_whitespace().take_while(|&word| word != "--");
        kernel.any(|word| word == option)
    }
}

fn invisible(reason: &str) -> SpinVisibility {
    SpinVisibility::Invisible(reason.to_owned())
}

fn unknown(reason: &str) -> SpinVisibility {
    SpinVisibility::Unknown(reason.to_owned())
}

/// The hypervisor this kernel runs under, if the CPU says that there is one. Only x86 is asked: elsewhere Linux has the
/// same spinlocks in guests as on bare metal.
fn hypervisor() -> Option<Hypervisor> {
    let cpuinfo = File::open("/proc/cpuinfo").ok().filter(|_| cfg!(target_arch = "x86_64"))?;
    is_guest(BufReader::new(cpuinfo)).then(|| hypervisor_of(&cpuid))
}

/// Whether `/proc/cpuinfo` has the flag `hypervisor`: the kernel's own view (`X86_FEATURE_HYPERVISOR`).
/// Reads the first CPU's part only: with hundreds of CPUs the file is long and slow to make.
fn is_guest(cpuinfo: impl BufRead) -> bool {
    let flags = cpuinfo.lines().map_while(Result::ok).find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

/// The registers of a CPUID leaf: EAX, EBX, ECX, EDX.
type Leaf = [u32; 4];

#[cfg(target_arch = "x86_64")]
fn cpuid(leaf: u32) -> Leaf {
    let found = std::arch::x86_64::__cpuid(leaf);
    [found.eax, found.ebx, found.ecx, found.edx]
}

#[cfg(not(target_arch = "x86_64"))]
fn cpuid(_leaf: u32) -> Leaf {
    [0; 4]
}

/// The hypervisor whose guest code the kernel runs. One that also speaks another's language shows that first and itself
/// further up, and the kernel takes the uppermost it knows (`detect_hypervisor_vendor`, `arch/x86/kernel/cpu/hypervisor.c`).
fn hypervisor_of(cpuid: &dyn Fn(u32) -> Leaf) -> Hypervisor {
    // The kernel looks at 256 places (`hypervisor_cpuid_base`). Each look leaves the guest, and nobody speaks more
    // than three languages.
    let bases = (0x4000_0000u32..0x4000_0400).step_by(0x100);
    let known = bases.rev().find_map(|base| known_hypervisor(cpuid, base));
    known.unwrap_or_else(|| Hypervisor {
        signature: signature(cpuid(0x4000_0000)),
        spin: HypervisorSpin::Other,
    })
}

/// What the leaves from `base` on say, if a hypervisor with paravirtual spinlocks is there.
fn known_hypervisor(cpuid: &dyn Fn(u32) -> Leaf, base: u32) -> Option<Hypervisor> {
    let signature = signature(cpuid(base));
    let spin = match signature.as_str() {
        "KVMKVMKVM" => {
            let [features, _, _, hints] = cpuid(base + 1);
            HypervisorSpin::Kvm { unhalt: features >> 7 & 1 != 0, dedicated: hints & 1 != 0 }
        }
        "Microsoft Hv" => {
            let ([features, ..], [hints, ..]) = (cpuid(base + 3), cpuid(base + 4));
            HypervisorSpin::HyperV { enlightened: features & hints & 1 << 10 != 0 }
        }
        "XenVMMXenVMM" => HypervisorSpin::Xen,
        _ => return None,
    };
    Some(Hypervisor { signature, spin })
}

/// The twelve letters in EBX, ECX and EDX of a hypervisor's first leaf, without padding.
fn signature([_, ebx, ecx, edx]: Leaf) -> String {
    let bytes: Vec<u8> = [ebx, ecx, edx].iter().flat_map(|register| register.to_le_bytes()).collect();
    let text = String::from_utf8_lossy(&bytes);
    text.chars()
        .filter(|letter| letter.is_ascii_graphic() || *letter == ' ')
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KVM: HypervisorSpin = HypervisorSpin::Kvm { unhalt: true, dedicated: false };
    const BUILD: SpinSymbols = SpinSymbols { queued: true, paravirt: true, virt: true };

    fn guest(spin: HypervisorSpin) -> Spin {
        let hypervisor = Some(Hypervisor { signature: "any".to_owned(), spin });
        Spin { x86: true, hypervisor, possible_cpus: 4, cmdline: String::new(), symbols: Some(BUILD) }
    }

    fn reason(spin: &Spin) -> String {
        match spin.visibility() {
            SpinVisibility::Invisible(reason) => format!("invisible: {reason}"),
            SpinVisibility::Unknown(reason) => format!("unknown: {reason}"),
            seen => format!("{seen:?}"),
        }
    }

    #[test]
    fn isolated_cpus_are_a_list() {
        assert_eq!(cpu_numbers("2-4,7\n"), [2, 3, 4, 7]);
        assert_eq!(cpu_numbers("(null)\n"), [0u32; 0]);
        assert_eq!(cpu_numbers(""), [0u32; 0]);
    }

    #[test]
    fn bare_metal_and_other_machines_have_native_queued_spinlocks() {
        assert_eq!(reason(&Spin { hypervisor: None, ..guest(KVM) }), "Queued");
        assert_eq!(reason(&Spin { x86: false, ..guest(KVM) }), "Queued");
    }

    #[test]
    fn kvm_decides_as_kvm_spinlock_init_does() {
        assert_eq!(reason(&guest(KVM)), "Paravirt");
        assert_eq!(reason(&Spin { possible_cpus: 1, ..guest(KVM) }), "Queued");
        assert_eq!(reason(&Spin { cmdline: "quiet nopvspin".to_owned(), ..guest(KVM) }), "Queued");
        assert_eq!(reason(&Spin { cmdline: "quiet -- nopvspin".to_owned(), ..guest(KVM) }), "Paravirt");
        let kvm = |unhalt, dedicated| reason(&guest(HypervisorSpin::Kvm { unhalt, dedicated }));
        assert_eq!((kvm(true, true).as_str(), kvm(false, true).as_str()), ("Queued", "Queued"));
        assert!(kvm(false, false).starts_with("invisible: a KVM guest without"));
        assert!(reason(&Spin { cmdline: "nopv".to_owned(), ..guest(KVM) }).starts_with("invisible: `nopv`"));
    }

    #[test]
    fn other_hypervisors_have_their_own_rules() {
        assert_eq!(reason(&guest(HypervisorSpin::HyperV { enlightened: true })), "Paravirt");
        assert!(reason(&guest(HypervisorSpin::HyperV { enlightened: false })).starts_with("invisible"));
        let off =
            Spin { cmdline: "hv_nopvspin".to_owned(), ..guest(HypervisorSpin::HyperV { enlightened: true }) };
        assert!(reason(&off).starts_with("invisible: `hv_nopvspin`"));
        assert!(reason(&guest(HypervisorSpin::Xen)).starts_with("unknown: a Xen guest"));
        assert!(reason(&guest(HypervisorSpin::Other)).contains("`any`, which has no paravirtual spinlocks"));
    }

    #[test]
    fn the_build_decides_first() {
        let built = |symbols| reason(&Spin { symbols, ..guest(KVM) });
        assert!(built(None).starts_with("unknown: /proc/kallsyms"));
        assert!(
            built(Some(SpinSymbols { queued: false, ..BUILD })).starts_with("unknown: this kernel has no")
        );
        assert!(built(Some(SpinSymbols { paravirt: false, ..BUILD })).contains("CONFIG_PARAVIRT_SPINLOCKS"));
        let neither = SpinSymbols { paravirt: false, virt: false, ..BUILD };
        assert!(built(Some(neither)).starts_with("unknown: a guest whose kernel"));
    }

    fn leaf(eax: u32, signature: &[u8; 12]) -> Leaf {
        let word = |at: usize| u32::from_le_bytes(signature[at..at + 4].try_into().unwrap());
        [eax, word(0), word(4), word(8)]
    }

    #[test]
    fn the_uppermost_known_hypervisor_wins() {
        let kvm = |base: u32| {
            move |at: u32| match at {
                at if at == base => leaf(base + 1, b"KVMKVMKVM\0\0\0"),
                at if at == base + 1 => [1 << 7, 0, 0, 1],
                0x4000_0000 => leaf(0x4000_000b, b"Microsoft Hv"),
                _ => [0; 4],
            }
        };
        for base in [0x4000_0000, 0x4000_0100] {
            let found = hypervisor_of(&kvm(base));
            assert_eq!(found.signature, "KVMKVMKVM");
            assert_eq!(found.spin, HypervisorSpin::Kvm { unhalt: true, dedicated: true });
        }
        let vmware = hypervisor_of(&|at| if at == 0x4000_0000 { leaf(0, b"VMwareVMware") } else { [0; 4] });
        assert_eq!((vmware.signature.as_str(), vmware.spin), ("VMwareVMware", HypervisorSpin::Other));
        assert_eq!(hypervisor_of(&|_| [0; 4]).signature, "");
    }

    #[test]
    fn hyperv_needs_both_bits() {
        let hyperv = |features: u32, hints: u32| {
            hypervisor_of(&move |at| match at {
                0x4000_0000 => leaf(0x4000_000b, b"Microsoft Hv"),
                0x4000_0003 => [features, 0, 0, 0],
                0x4000_0004 => [hints, 0, 0, 0],
                _ => [0; 4],
            })
            .spin
        };
        assert_eq!(hyperv(1 << 10, 1 << 10), HypervisorSpin::HyperV { enlightened: true });
        assert_eq!(hyperv(1 << 10, 1 << 9), HypervisorSpin::HyperV { enlightened: false });
    }

    #[test]
    fn small_texts() {
        assert_eq!(chosen("none [integrity] confidentiality"), Some("integrity"));
        assert_eq!(chosen("none voluntary (full) lazy"), Some("full"));
        assert_eq!(chosen("none"), None);
        assert_eq!((cpu_list("0-1\n"), cpu_list("0,2-3,8")), (Some((2, 2)), Some((4, 9))));
        for broken in ["", "a", "3-1", "0-", "4294967295", "1,,2"] {
            assert_eq!(cpu_list(broken), None, "{broken}");
        }
        assert_eq!(built_preempt("#1 SMP PREEMPT_DYNAMIC Debian 6.12"), Some("PREEMPT_DYNAMIC"));
        assert_eq!(built_preempt("#1 SMP Debian"), None);
        assert!(is_guest(&b"processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n"[..]));
        assert!(!is_guest(&b"flags : fpu vme\nbugs : hypervisor"[..]));
    }

    #[test]
    fn ticks_and_handoff() {
        for (tick, hz) in
            [(10_000_000, 100), (4_000_000, 250), (3_333_333, 300), (1_000_000, 1000), (976_563, 1024)]
        {
            assert_eq!(hz_of(tick), Some(hz));
        }
        assert_eq!((hz_of(0), hz_of(1)), (None, None));
        let mut features = Features::read(&Kallsyms::default()).unwrap();
        for (hz, ns) in [(100, 10_000_000), (250, 4_000_000), (300, 6_666_666), (1000, 4_000_000)] {
            features.hz = Some(hz);
            assert_eq!(features.handoff_timeout_ns(), Some(ns), "{hz}");
        }
        features.hz = None;
        assert_eq!(features.handoff_timeout_ns(), None);
    }

    #[test]
    fn this_host() {
        let symbols = Kallsyms::read().unwrap();
        let features = Features::read(&symbols).unwrap();
        eprintln!("{features:#?}");
        assert_eq!(word("/proc/sys/kernel/osrelease").as_deref(), Some(features.release.as_str()));
        assert_eq!(word("/proc/sys/kernel/hostname").as_deref(), Some(features.hostname.as_str()));
        assert!(features.online_cpus >= 1 && features.possible_cpus >= features.online_cpus);
        assert!(
            features.page_size.is_power_of_two() && features.hz.is_some_and(|hz| (24..=2000).contains(&hz))
        );
        let json = serde_json::to_string(&features).unwrap();
        assert!(json.contains("\"spin_visibility\":{\"kind\":"), "{json}");
    }
}
