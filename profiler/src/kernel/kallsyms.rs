//! The kernel's symbol table, read from `/proc/kallsyms` once: address → name, name → address, and which functions
//! are lock code, so that a stack's caller of a lock can be told from the lock itself.
//!
//! It must not guess: an address outside every known function has no symbol, and a table without addresses says so.
//! It is a snapshot: modules and BPF programs loaded later are unknown until it is read again.

use std::fs;

use anyhow::{Context, Result, bail};

/// The kernel's file (`kernel/kallsyms.c`). World-readable, but see [`Kallsyms::reason`].
const KALLSYMS: &str = "/proc/kallsyms";
/// Bytes after a function's start that may still belong to it. The table has no sizes: beyond this, the address lies
/// in a hole (between the kernel and the modules, or in what was loaded later). The largest functions measured on
/// 6.18 have 20 kB; a sanitizer kernel's are a few times larger.
const MAX_FUNCTION: u64 = 1 << 17;
/// The same for a variable; static tables are larger than functions.
const MAX_VARIABLE: u64 = 1 << 20;

/// Waiting and wrapping functions of `kernel/locking/`, `.sched.text` functions that matter where that section has no
/// bounds, and the tracing code between a lock and our programs. Names without compiler suffixes, sorted; taken from
/// the sources of 6.1 and 6.12 (also `PREEMPT_RT`) and the symbols of a 6.18; `fprobe_*` as later kernels have them.
const LOCK_NAMES: &[&str] = &[
    "___down_common",
    "__bpf_tramp_enter",
    "__bpf_tramp_exit",
    "__down",
    "__down_common",
    "__down_interruptible",
    "__down_killable",
    "__down_timeout",
    "__fentry__",
    "__kretprobe_trampoline",
    "__kretprobe_trampoline_handler",
    "__lock_acquire",
    "__raw_callee_save___native_queued_spin_unlock",
    "__schedule",
    "__up",
    "aggr_pre_handler",
    "arch_ftrace_ops_list_func",
    "arch_rethook_trampoline",
    "arch_rethook_trampoline_callback",
    "asm_exc_int3",
    "do_int3",
    "down",
    "down_interruptible",
    "down_killable",
    "down_timeout",
    "down_trylock",
    "downgrade_write",
    "exc_int3",
    "fprobe_entry",
    "fprobe_exit_handler",
    "fprobe_handler",
    "fprobe_return",
    "ftrace_call",
    "ftrace_caller",
    "ftrace_graph_caller",
    "ftrace_ops_assist_func",
    "ftrace_ops_list_func",
    "ftrace_regs_call",
    "ftrace_regs_caller",
    "ftrace_return_to_handler",
    "ftrace_stub",
    "ftrace_stub_direct_tramp",
    "get_perf_callchain",
    "kprobe_dispatcher",
    "kprobe_ftrace_handler",
    "kprobe_int3_handler",
    "kprobe_multi_link_exit_handler",
    "kprobe_multi_link_handler",
    "kprobe_multi_link_prog_run",
    "kprobe_perf_func",
    "kretprobe_dispatcher",
    "kretprobe_perf_func",
    "kretprobe_rethook_handler",
    "kvm_kick_cpu",
    "kvm_wait",
    "lock_acquire",
    "lock_acquired",
    "lock_contended",
    "lock_release",
    "mark_wakeup_next_waiter",
    "mutex_can_spin_on_owner",
    "mutex_optimistic_spin",
    "mutex_spin_on_owner",
    "opt_pre_handler",
    "optimized_callback",
    "perf_callchain",
    "perf_callchain_kernel",
    "perf_trace_run_bpf_submit",
    "pre_handler_kretprobe",
    "pv_hash",
    "pv_init_node",
    "pv_kick_node",
    "pv_wait_head_or_lock",
    "pv_wait_node",
    "remove_waiter",
    "rethook_trampoline_handler",
    "return_to_handler",
    "rt_mutex_adjust_pi",
    "rt_mutex_adjust_prio_chain",
    "rt_mutex_cleanup_proxy_lock",
    "rt_mutex_handle_deadlock",
    "rt_mutex_post_schedule",
    "rt_mutex_postunlock",
    "rt_mutex_pre_schedule",
    "rt_mutex_proxy_unlock",
    "rt_mutex_schedule",
    "rt_mutex_start_proxy_lock",
    "rt_mutex_wait_proxy_lock",
    "rtmutex_spin_on_owner",
    "schedule",
    "schedule_preempt_disabled",
    "schedule_rtlock",
    "schedule_timeout",
    "task_blocks_on_rt_mutex",
    "trace_call_bpf",
    "trampoline_handler",
    "try_to_take_rt_mutex",
    "up",
    "up_read",
    "up_read_non_owner",
    "up_write",
];

/// The same for whole families. Not `rt_mutex_*`: `rt_mutex_setprio` (`kernel/sched/core.c`) is a run queue's caller;
/// not `ftrace_*`, `kprobe_*` or `bpf_prog_*`: the functions that manage these take locks of their own. What ftrace,
/// kprobes and the BPF compiler generate is known by its module name, see [`GENERATED`].
/// Per-CPU areas are smaller than this, and linked at 0.
const MOST_PER_CPU: u64 = 16 << 20;

/// Where buffer lookups are traced (the first two), and what stands between them and who wanted the buffer (fs/buffer.c).
const BUFFER_LOOKUPS: [&str; 8] = [
    "find_get_block_common",
    "__find_get_block",
    "__find_get_block_nonatomic",
    "bdev_getblk",
    "__getblk_gfp",
    "__bread_gfp",
    "__breadahead",
    "sb_find_get_block",
];

const LOCK_PREFIXES: &[&str] = &[
    "__bpf_get_stack",
    "__bpf_prog_enter",
    "__bpf_prog_exit",
    "__bpf_trace_contention_",
    "__mutex_",
    "__percpu_down_",
    "__percpu_rwsem_",
    "__probestub_contention_",
    "__pv_queued_spin_",
    "__raw_callee_save___pv_queued_spin_",
    "__raw_read_",
    "__raw_spin_",
    "__raw_write_",
    "__rt_mutex_",
    "__rt_spin_",
    "__rwbase_",
    "__traceiter_contention_",
    "__ww_mutex_",
    "_down_write_nest_lock",
    "_mutex_lock_",
    "_raw_read_",
    "_raw_spin_",
    "_raw_write_",
    "_rt_mutex_lock_",
    "bpf_get_stack",
    "bpf_trace_run",
    "debug_mutex_",
    "do_raw_read_",
    "do_raw_spin_",
    "do_raw_write_",
    "down_read",
    "down_write",
    "hv_qlock_",
    "mcs_spin_",
    "mutex_lock",
    "mutex_trylock",
    "mutex_unlock",
    "native_queued_spin_",
    "osq_",
    "percpu_down_",
    "percpu_rwsem_",
    "percpu_up_",
    "perf_trace_contention_",
    "queued_read_lock_",
    "queued_spin_lock_",
    "queued_write_lock_",
    "resilient_queued_spin_",
    "resilient_tas_",
    "rt_mutex_futex_",
    "rt_mutex_lock",
    "rt_mutex_slow",
    "rt_mutex_trylock",
    "rt_mutex_unlock",
    "rt_read_",
    "rt_spin_",
    "rt_write_",
    "rtlock_",
    "rwbase_",
    "rwsem_",
    "trace_event_raw_event_contention_",
    "ww_mutex_",
    "xen_qlock_",
];

/// Functions outside `kernel/locking/` that do nothing but take (or release) one kind of lock. They are passed over
/// too: "`rtnl_lock` waited" says no more than the lock's own name, while its caller says why. Many are `static
/// inline` in most builds and stand here because a compiler may emit them. A function that also looks something up
/// (`lock_mm_and_find_vma`, `folio_lock_anon_vma_read`, `lock_vma_under_rcu`, `lock_mount`) is a caller, and so is one
/// that says what the lock is for (`fdget_pos`).
const WRAPPERS: &[&str] = &[
    // lib/dec_and_lock.c, lib/refcount.c, kernel/locking/mutex.c
    "_atomic_dec_and_lock",
    "_atomic_dec_and_lock_irqsave",
    "_atomic_dec_and_raw_lock",
    "_atomic_dec_and_raw_lock_irqsave",
    "atomic_dec_and_mutex_lock",
    "refcount_dec_and_lock",
    "refcount_dec_and_lock_irqsave",
    "refcount_dec_and_mutex_lock",
    // include/linux/bit_spinlock.h, list_bl.h
    "bit_spin_lock",
    "hlist_bl_lock",
    // include/linux/mmap_lock.h, fs.h, mm.h
    "mmap_read_lock",
    "mmap_read_lock_killable",
    "mmap_read_trylock",
    "mmap_read_unlock",
    "mmap_write_downgrade",
    "mmap_write_lock",
    "mmap_write_lock_killable",
    "mmap_write_lock_nested",
    "mmap_write_trylock",
    "mmap_write_unlock",
    "inode_lock",
    "inode_lock_killable",
    "inode_lock_nested",
    "inode_lock_shared",
    "inode_lock_shared_nested",
    "inode_trylock",
    "inode_unlock",
    "inode_unlock_shared",
    "i_mmap_lock_read",
    "i_mmap_lock_write",
    "filemap_invalidate_lock",
    "filemap_invalidate_lock_shared",
    "filemap_invalidate_lock_two",
    "lock_two_nondirectories",
    "anon_vma_lock_read",
    "anon_vma_lock_write",
    // mm/memcontrol.c, pgtable-generic.c, huge_memory.c, hugetlb.c, compaction.c
    "folio_lruvec_lock",
    "folio_lruvec_lock_irq",
    "folio_lruvec_lock_irqsave",
    "__pte_offset_map_lock",
    "pte_offset_map_lock",
    "__pmd_trans_huge_lock",
    "__pud_trans_huge_lock",
    "hugetlb_vma_lock_read",
    "hugetlb_vma_lock_write",
    "compact_lock_irqsave",
    // kernel/sched/core.c, sched.h
    "__task_rq_lock",
    "task_rq_lock",
    "raw_spin_rq_lock_nested",
    "raw_spin_rq_trylock",
    "raw_spin_rq_unlock",
    "double_rq_lock",
    "_double_lock_balance",
    "sched_domains_mutex_lock",
    // kernel/signal.c, time/, irq/irqdesc.c, cpu.c, jump_label.c, printk/printk.c, cgroup/, futex/, events/core.c
    "__lock_task_sighand",
    "lock_timer_base",
    "lock_hrtimer_base",
    "timekeeper_lock_irqsave",
    "__irq_get_desc_lock",
    "irq_lock_sparse",
    "cpus_read_lock",
    "cpus_write_lock",
    "jump_label_lock",
    "console_lock",
    "console_trylock",
    "console_list_lock",
    "__down_trylock_console_sem",
    "__up_console_sem",
    "cgroup_kn_lock_live",
    "__cgroup_rstat_lock",
    "__css_rstat_lock",
    "cpuset_lock",
    "futex_q_lock",
    "perf_lock_task_context",
    "htab_lock_bucket",
    // fs/namei.c, super.c, pipe.c, btrfs/, xfs/
    "lock_rename",
    "lock_rename_child",
    "lock_two_directories",
    "super_lock",
    "super_lock_excl",
    "pipe_lock",
    "pipe_double_lock",
    "btrfs_tree_lock",
    "btrfs_tree_lock_nested",
    "btrfs_tree_read_lock",
    "btrfs_tree_read_lock_nested",
    "btrfs_inode_lock",
    "xfs_buf_lock",
    "xfs_ilock",
    "xfs_ilock_nowait",
    "xfs_ilock_iocb",
    "xfs_ilock_iocb_for_write",
    "xfs_ilock_data_map_shared",
    "xfs_ilock_attr_map_shared",
    "xfs_lock_inodes",
    "xfs_lock_two_inodes",
    // net/core/, netlink/, netfilter/, unix/
    "rtnl_lock",
    "rtnl_lock_killable",
    "rtnl_trylock",
    "rtnl_unlock",
    "genl_lock",
    "nfnl_lock",
    "lock_sock_nested",
    "__lock_sock",
    "__lock_sock_fast",
    "sockopt_lock_sock",
    "netif_tx_lock",
    "unix_state_double_lock",
    "unix_table_double_lock",
    // drivers/base/, tty/, clk/
    "device_links_read_lock",
    "lock_device_hotplug",
    "tty_lock",
    "tty_lock_interruptible",
    "tty_ldisc_lock",
    "tty_write_lock",
    "ldsem_down_read",
    "ldsem_down_read_trylock",
    "ldsem_down_write",
    "ldsem_up_read",
    "ldsem_up_write",
    "ldsem_wake",
    "__ldsem_wake_readers",
    "clk_enable_lock",
    "clk_prepare_lock",
];

/// Module names of generated code (`kernel/bpf/core.c` `bpf_get_kallsym`, `kernel/trace/ftrace.c`,
/// `kernel/kprobes.c`): BPF programs and trampolines, ftrace trampolines, instruction slots of kprobes.
const GENERATED: [&str; 3] = ["bpf", "__builtin__ftrace", "__builtin__kprobes"];

/// Symbols that name a section's bound, not a function or variable (`include/asm-generic/vmlinux.lds.h`).
const BOUNDS: [&str; 12] = [
    "_text",
    "_stext",
    "_etext",
    "_sinittext",
    "_einittext",
    "_sdata",
    "_edata",
    "_end",
    "__bss_start",
    "__bss_stop",
    "__init_begin",
    "__init_end",
];

/// Sections that hold nothing but lock code or code that sleeps (`in_sched_functions` in `kernel/sched/core.c`,
/// `in_lock_functions` in `kernel/locking/spinlock.c`).
const LOCK_SECTIONS: [(&str, &str); 2] =
    [("__sched_text_start", "__sched_text_end"), ("__lock_text_start", "__lock_text_end")];

/// A function or variable and how far into it an address lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its name, with the compiler's suffix if it has one (`__mutex_lock.constprop.0`).
    pub name: &'a str,
    /// Bytes from its start to the address that was asked for.
    pub offset: u64,
    /// The module it belongs to; `None` for the kernel itself. Generated code has names of its own, such as `bpf`.
    pub module: Option<&'a str>,
}

/// The symbols of one moment.
#[derive(Debug, Default)]
pub struct Kallsyms {
    /// Every name, one after the other.
    names: String,
    modules: Vec<String>,
    /// Functions, sorted by address and, at equal addresses, best name first.
    text: Vec<Entry>,
    /// Variables, sorted alike.
    data: Vec<Entry>,
    /// Per-CPU variables by their offset in a CPU's area (arch/x86: the area is linked at 0).
    per_cpu: Vec<Entry>,
    /// Address ranges of [`LOCK_SECTIONS`].
    lock_sections: Vec<(u64, u64)>,
}

/// How good a name is among several at one address; lower is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Global,
    Local,
    /// A section's bound: never an answer to "what is here".
    Bound,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    address: u64,
    /// Where the name begins in `Kallsyms::names`.
    name: u32,
    len: u16,
    /// Index in `Kallsyms::modules` plus one; 0 for the kernel itself.
    module: u16,
    rank: Rank,
}

/// What a symbol's type letter says (as of `nm`); absolute symbols are of no use here.
enum Class {
    Text,
    Data,
    PerCpu,
    Other,
}

impl Kallsyms {
    /// Reads the running kernel's symbols. To see addresses at all takes `CAP_SYSLOG`, see [`Kallsyms::reason`].
    ///
    /// # Errors
    /// `/proc/kallsyms` cannot be read (a kernel without `CONFIG_KALLSYMS`) or has a line of another form.
    pub fn read() -> Result<Kallsyms> {
        let text = fs::read(KALLSYMS).with_context(|| format!("cannot read {KALLSYMS}"))?;
        Kallsyms::parse(&String::from_utf8_lossy(&text)).with_context(|| format!("cannot use {KALLSYMS}"))
    }

    /// Parses a text of that form: `address type name [module]`.
    ///
    /// # Errors
    /// A line has another form; the message shows it.
    pub fn parse(text: &str) -> Result<Kallsyms> {
        let mut symbols = Kallsyms::default();
        for (number, line) in text.lines().enumerate() {
            symbols.add(line).with_context(|| format!("line {}: `{line}`", number + 1))?;
        }
        symbols.sort();
        symbols.lock_sections = LOCK_SECTIONS.iter().filter_map(|range| symbols.section(range)).collect();
        Ok(symbols)
    }

    fn add(&mut self, line: &str) -> Result<()> {
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(letter), Some(name)) = (words.next(), words.next(), words.next()) else {
            bail!("not `address type name`");
        };
        let address = u64::from_str_radix(address, 16).context("no address")?;
        let class = if address < MOST_PER_CPU && letter == "A" { Class::PerCpu } else { Class::of(letter) };
        // Padding before functions (`CONFIG_FUNCTION_PADDING`, `CONFIG_CFI_CLANG`) doubles the table for nothing.
        if matches!(class, Class::Other) || name.starts_with("__pfx_") || name.starts_with("__cfi_") {
            return Ok(());
        }
        let module = words.next().map_or(0, |module| self.module(module.trim_matches(['[', ']'])));
        let entry = Entry {
            address,
            name: u32::try_from(self.names.len()).context("more than 4 GiB of names")?,
            len: u16::try_from(name.len()).context("a name of more than 64 KiB")?,
            module,
            rank: Rank::of(name, letter),
        };
        self.names.push_str(name);
        match class {
            Class::Text => self.text.push(entry),
            Class::PerCpu => self.per_cpu.push(entry),
            Class::Data | Class::Other => self.data.push(entry),
        }
        Ok(())
    }

    /// The number of a module's name. Its symbols come in one run, so the last one is nearly always right.
    fn module(&mut self, name: &str) -> u16 {
        let at = self.modules.iter().rposition(|known| known == name).unwrap_or_else(|| {
            self.modules.push(name.to_owned());
            self.modules.len() - 1
        });
        u16::try_from(at + 1).unwrap_or(0)
    }

    fn sort(&mut self) {
        let names = &self.names;
        for entries in [&mut self.text, &mut self.data, &mut self.per_cpu] {
            // A stable sort: among equals, the kernel's own order stays.
            entries.sort_by_key(|entry| (entry.address, entry.rank, entry.len));
            // Aliases of one address may be local copies of the same name.
            entries.dedup_by(|a, b| {
                a.address == b.address && a.address != 0 && a.name_in(names) == b.name_in(names)
            });
        }
    }

    fn section(&self, &(start, end): &(&str, &str)) -> Option<(u64, u64)> {
        Some((self.address(start)?, self.address(end)?)).filter(|(start, end)| start < end)
    }

    /// Whether the table has addresses. If not, [`Kallsyms::reason`] says why.
    pub fn usable(&self) -> bool {
        self.reason().is_none()
    }

    /// Why the table is of no use, for a person who can change it; `None` when it is usable.
    pub fn reason(&self) -> Option<&'static str> {
        if self.text.is_empty() {
            return Some("/proc/kallsyms lists no functions (CONFIG_KALLSYMS is off)");
        }
        // Sorted: the last has the largest address. `kallsyms_show_value` in kernel/ksyms_common.c decides for all.
        let hidden = self.text.last().is_none_or(|entry| entry.address == 0);
        hidden.then_some(
            "all addresses in /proc/kallsyms are zero: run with CAP_SYSLOG (as root), with kernel.kptr_restrict \
             below 2",
        )
    }

    /// Whether variables are listed (`CONFIG_KALLSYMS_ALL`), and not only the bounds of sections.
    pub fn has_data_symbols(&self) -> bool {
        let known =
            |name| self.data.iter().any(|entry| entry.address != 0 && entry.name_in(&self.names) == name);
        known("init_task") || known("page_offset_base")
    }

    /// The function an exact instruction address lies in.
    pub fn symbol(&self, address: u64) -> Option<Symbol<'_>> {
        self.find(&self.text, address, MAX_FUNCTION)
    }

    /// The function that will be returned to. A return address may lie just behind the function (after a call that
    /// never returns), so the byte before it is looked up; the offset is that of the return address itself.
    pub fn symbol_of_return(&self, address: u64) -> Option<Symbol<'_>> {
        let symbol = self.symbol(address.checked_sub(1)?)?;
        Some(Symbol { offset: symbol.offset + 1, ..symbol })
    }

    /// The variable an address lies in; `None` too when the kernel lists no variables.
    pub fn data_symbol(&self, address: u64) -> Option<Symbol<'_>> {
        self.find(&self.data, address, MAX_VARIABLE)
    }

    /// The per-CPU variable at this offset of a CPU's area, where the kernel links that area at 0 and lists it.
    pub fn per_cpu_symbol(&self, offset: u64) -> Option<Symbol<'_>> {
        let end = self.per_cpu_offset("__per_cpu_end")?;
        let symbol = (offset < end).then(|| self.find(&self.per_cpu, offset, MAX_VARIABLE))?;
        symbol.filter(|symbol| !symbol.name.starts_with("__per_cpu_"))
    }

    /// Where in a CPU's area a per-CPU variable lies.
    pub fn per_cpu_offset(&self, name: &str) -> Option<u64> {
        self.per_cpu.iter().find(|entry| entry.name_in(&self.names) == name).map(|entry| entry.address)
    }

    /// Address of a function or variable. Of several static ones of that name, the global one or else the lowest.
    pub fn address(&self, name: &str) -> Option<u64> {
        let entries = self.text.iter().chain(&self.data);
        let named = entries.filter(|entry| entry.address != 0 && entry.name_in(&self.names) == name);
        named.min_by_key(|entry| entry.rank).map(|entry| entry.address)
    }

    /// Whether a function or variable of that name exists, even where addresses are hidden.
    pub fn contains(&self, name: &str) -> bool {
        self.text.iter().chain(&self.data).any(|entry| entry.name_in(&self.names) == name)
    }

    fn find<'a>(&'a self, entries: &[Entry], address: u64, reach: u64) -> Option<Symbol<'a>> {
        let after = entries.partition_point(|entry| entry.address <= address);
        let start = entries.get(after.checked_sub(1)?)?.address;
        // Of several names at this address the first is the best.
        let best = entries.partition_point(|entry| entry.address < start);
        let entry = entries.get(best).filter(|entry| entry.rank != Rank::Bound && entry.address != 0)?;
        let offset = address.checked_sub(start).filter(|&offset| offset < reach)?;
        let module = usize::from(entry.module).checked_sub(1).and_then(|at| self.modules.get(at));
        Some(Symbol { name: entry.name_in(&self.names), offset, module: module.map(String::as_str) })
    }

    /// Whether an exact instruction address lies in lock code, in code that only waits or wraps a lock, or in the
    /// tracing code between a lock and a BPF program.
    pub fn is_lock_code(&self, address: u64) -> bool {
        self.lock_sections.iter().any(|&(start, end)| (start..end).contains(&address))
            || self.symbol(address).is_some_and(|symbol| is_lock_symbol(&symbol))
    }

    /// The function that wanted the lock: the first frame that is not lock code, and its place in `frames`.
    ///
    /// `frames` runs from the innermost outwards; the first may be an exact address, the others are return addresses.
    /// Frames without a symbol are passed over: they are BPF programs younger than this table.
    pub fn caller<'a>(&'a self, frames: &[u64]) -> Option<(usize, Symbol<'a>)> {
        let mut outside = frames.iter().enumerate().filter_map(|(index, &frame)| {
            let inside = if index == 0 { frame } else { frame.checked_sub(1)? };
            if self.is_lock_code(inside) {
                return None;
            }
            let symbol = if index == 0 { self.symbol(frame) } else { self.symbol_of_return(frame) };
            Some((index, symbol?))
        });
        let first = outside.next()?;
        // A sampled lookup of a buffer begins in the lookup itself.
        if BUFFER_LOOKUPS[..2].contains(&first.1.name) {
            return outside.find(|(_, symbol)| !BUFFER_LOOKUPS.contains(&symbol.name)).or(Some(first));
        }
        Some(first)
    }
}

impl Entry {
    fn name_in(self, names: &str) -> &str {
        let start = self.name as usize;
        names.get(start..start + usize::from(self.len)).unwrap_or_default()
    }
}

impl Class {
    fn of(letter: &str) -> Class {
        match letter {
            "t" | "T" | "w" | "W" => Class::Text,
            "d" | "D" | "b" | "B" | "r" | "R" | "v" | "V" => Class::Data,
            _ => Class::Other,
        }
    }
}

impl Rank {
    fn of(name: &str, letter: &str) -> Rank {
        if is_bound(name) {
            Rank::Bound
        } else if letter.starts_with(|letter: char| letter.is_ascii_uppercase()) {
            Rank::Global
        } else {
            Rank::Local
        }
    }
}

fn is_bound(name: &str) -> bool {
    let section = name.starts_with("__start_") || name.starts_with("__stop_");
    section || name.ends_with("_text_start") || name.ends_with("_text_end") || BOUNDS.contains(&name)
}

fn is_lock_symbol(symbol: &Symbol<'_>) -> bool {
    if symbol.module.is_some_and(|module| GENERATED.contains(&module)) {
        return true;
    }
    let name = without_suffix(symbol.name);
    LOCK_NAMES.binary_search(&name).is_ok()
        || LOCK_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || WRAPPERS.contains(&name)
}

/// A name without what compilers append: `.isra.0`, `.constprop.0`, `.part.0`, `.cold`, `.llvm.123`.
fn without_suffix(name: &str) -> &str {
    // A leading dot belongs to the name (`.slowpath` of `__pv_queued_spin_unlock`).
    let dot = name.char_indices().skip(1).find(|&(_, letter)| letter == '.');
    dot.and_then(|(at, _)| name.get(..at)).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
ffffffff81000000 T _text
ffffffff81000000 t local_alias
ffffffff81000000 T startup
ffffffff81000000 T startup_with_a_longer_name
ffffffff81000100 t twice
ffffffff81000200 t vfs_write
ffffffff81000300 T twice
ffffffff810003f0 T __pfx_last
ffffffff81000400 W last
ffffffff81000500 T _etext
ffffffff82000000 T __sched_text_start
ffffffff82000000 T io_schedule
ffffffff82000040 T __sched_text_end
ffffffff82000040 t mmap_write_lock
ffffffff82000080 t rwsem_wake.isra.0
ffffffff820000c0 t do_exit.cold
ffffffff83000000 D init_task
ffffffff83001000 d jbd2_lock
ffffffff83001000 D __start_once
ffffffff83002000 A absolute
ffffffffc0001000 t do_get_write_access\t[jbd2]
ffffffffc0003000 t bpf_prog_6deef7357e7b4530_begin\t[bpf]
";

    fn sample() -> Kallsyms {
        Kallsyms::parse(SAMPLE).unwrap()
    }

    fn shown(symbol: Option<Symbol<'_>>) -> String {
        symbol
            .map_or("-".to_owned(), |s| format!("{}+{} {}", s.name, s.offset, s.module.unwrap_or("vmlinux")))
    }

    #[test]
    fn an_address_has_the_best_of_its_names() {
        let symbols = sample();
        for (address, want) in [
            (0xffff_ffff_8100_0000, "startup+0 vmlinux"),
            (0xffff_ffff_8100_02ff, "vfs_write+255 vmlinux"),
            (0xffff_ffff_8100_0410, "last+16 vmlinux"),
            (0xffff_ffff_c000_1010, "do_get_write_access+16 jbd2"),
            (0xffff_ffff_8100_0500, "-"),
            (0xffff_ffff_c100_0000, "-"),
            (0xffff_ffff_8000_0000, "-"),
            (0, "-"),
        ] {
            assert_eq!(shown(symbols.symbol(address)), want, "{address:#x}");
        }
    }

    #[test]
    fn a_return_address_belongs_to_the_function_before_it() {
        let symbols = sample();
        assert_eq!(shown(symbols.symbol_of_return(0xffff_ffff_8100_0300)), "vfs_write+256 vmlinux");
        assert_eq!(shown(symbols.symbol_of_return(0xffff_ffff_8100_0301)), "twice+1 vmlinux");
        assert_eq!(symbols.symbol_of_return(0), None);
    }

    #[test]
    fn variables_are_kept_apart() {
        let symbols = sample();
        assert!(symbols.has_data_symbols());
        assert_eq!(shown(symbols.data_symbol(0xffff_ffff_8300_1010)), "jbd2_lock+16 vmlinux");
        assert_eq!(symbols.data_symbol(0xffff_ffff_8100_0200), None);
        assert_eq!(symbols.symbol(0xffff_ffff_8300_0000), None);
        let bounds = Kallsyms::parse("ffffffff81000000 T f\nffffffff82000000 D __start_once").unwrap();
        assert!(bounds.usable() && !bounds.has_data_symbols());
        assert_eq!(bounds.data_symbol(0xffff_ffff_8200_0010), None);
    }

    #[test]
    fn names_have_addresses_and_global_ones_come_first() {
        let symbols = sample();
        assert_eq!(symbols.address("twice"), Some(0xffff_ffff_8100_0300));
        assert_eq!(symbols.address("init_task"), Some(0xffff_ffff_8300_0000));
        assert_eq!((symbols.address("absolute"), symbols.address("nope")), (None, None));
    }

    #[test]
    fn hidden_addresses_and_empty_tables_have_a_reason() {
        let hidden = Kallsyms::parse("0000000000000000 T startup\n0000000000000000 D init_task").unwrap();
        assert!(!hidden.usable() && hidden.reason().unwrap().contains("kptr_restrict"));
        assert_eq!((hidden.symbol(0), hidden.symbol(16), hidden.address("startup")), (None, None, None));
        assert!(hidden.contains("startup") && !hidden.has_data_symbols());
        assert!(Kallsyms::parse("").unwrap().reason().unwrap().contains("CONFIG_KALLSYMS"));
        assert_eq!(sample().reason(), None);
    }

    #[test]
    fn a_malformed_line_is_shown() {
        for line in ["ffff T", "xyz T name", "123456789abcdef012 T name"] {
            let error = Kallsyms::parse(&format!("ffffffff81000000 T ok\n{line}")).unwrap_err();
            assert!(format!("{error:#}").contains(&format!("line 2: `{line}`")), "{error:#}");
        }
    }

    #[test]
    fn tables_are_sorted_and_say_nothing_twice() {
        assert!(LOCK_NAMES.is_sorted() && LOCK_PREFIXES.is_sorted());
        let all: Vec<_> = LOCK_NAMES.iter().chain(WRAPPERS).collect();
        for (index, name) in all.iter().enumerate() {
            assert!(!all[..index].contains(name), "{name} stands twice");
            let covered = LOCK_PREFIXES.iter().find(|prefix| name.starts_with(**prefix));
            assert_eq!(covered, None, "{name}");
        }
    }

    fn classified(name: &str, module: Option<&str>) -> bool {
        is_lock_symbol(&Symbol { name, offset: 0, module })
    }

    #[test]
    fn lock_code_by_name() {
        for name in [
            "native_queued_spin_lock_slowpath",
            "__pv_queued_spin_lock_slowpath",
            "queued_write_lock_slowpath",
            "rwsem_down_write_slowpath",
            "rwsem_wake.isra.0",
            "__mutex_lock.constprop.0",
            "__mutex_unlock_slowpath.isra.0",
            "ww_mutex_lock_interruptible",
            "down_write_killable_nested",
            "down_read_trylock",
            "_raw_spin_lock_irqsave",
            "_raw_write_lock_nested",
            "do_raw_spin_lock",
            "rt_spin_lock_nested",
            "rtlock_slowlock_locked.part.0",
            "rwbase_write_lock.llvm.123",
            "__rt_mutex_slowlock_locked.constprop.0",
            "percpu_rwsem_wait",
            "up_write",
            "osq_lock",
            "bpf_trace_run2",
            "__traceiter_contention_begin",
            "kprobe_ftrace_handler",
            "arch_rethook_trampoline",
            "mmap_write_lock",
            "folio_lruvec_lock_irqsave",
        ] {
            assert!(classified(name, None), "{name}");
        }
        assert!(classified("bpf_trampoline_6442", Some("bpf")));
        assert!(classified("ftrace_trampoline", Some("__builtin__ftrace")));
    }

    #[test]
    fn callers_are_not_lock_code() {
        for name in [
            "do_exit",
            "lock_mm_and_find_vma",
            "vm_mmap_pgoff",
            "uptodate",
            "upgrade",
            "downgrade",
            "rt_mutex_setprio",
            "try_to_wake_up",
            "percpu_counter_add_batch",
            "ftrace_set_hash",
            "bpf_prog_load",
            "pv_ipi_supported",
            "locks_remove_posix",
            "ext4_file_write_iter.cold",
            "",
        ] {
            assert!(!classified(name, None), "{name}");
        }
        assert!(!classified("start_this_handle", Some("jbd2")));
    }

    #[test]
    fn the_caller_is_the_first_frame_outside() {
        let symbols = sample();
        let frames = [
            0xffff_ffff_c000_3010, // a BPF program
            0xffff_ffff_c100_0000, // one that is younger than the table
            0xffff_ffff_8200_0081, // rwsem_wake.isra.0
            0xffff_ffff_8200_0010, // by section
            0xffff_ffff_8200_0041, // a wrapper
            0xffff_ffff_8100_0300, // the end of vfs_write
        ];
        let (index, symbol) = symbols.caller(&frames).unwrap();
        assert_eq!((index, symbol.name, symbol.offset), (5, "vfs_write", 256));
        assert_eq!(symbols.caller(&frames[..5]), None);
        let (index, symbol) = symbols.caller(&[0xffff_ffff_8100_0300]).unwrap();
        assert_eq!((index, symbol.name, symbol.offset), (0, "twice", 0), "the first frame is exact");
    }

    #[test]
    fn the_running_kernel() {
        let symbols = Kallsyms::read().unwrap();
        if let Some(reason) = symbols.reason() {
            eprintln!("skipped: {reason}");
            return;
        }
        for name in ["down_write", "mutex_lock", "_raw_spin_lock", "schedule", "io_schedule"] {
            let Some(address) = symbols.address(name) else { continue };
            assert!(symbols.is_lock_code(address), "{name}");
            assert_eq!(symbols.symbol(address).map(|symbol| symbol.offset), Some(0), "{name}");
        }
        for name in ["vfs_read", "do_exit", "try_to_wake_up", "kernel_clone"] {
            let address = symbols.address(name).unwrap();
            assert!(!symbols.is_lock_code(address + 4), "{name}");
            assert_eq!(symbols.caller(&[address, address + 9]).unwrap().0, 0);
        }
    }

    #[test]
    #[ignore = "a measurement: cargo test --release -- --ignored --nocapture"]
    fn how_long_a_read_takes() {
        for _ in 0..5 {
            let start = std::time::Instant::now();
            let text = fs::read_to_string(KALLSYMS).unwrap();
            let file = start.elapsed();
            let start = std::time::Instant::now();
            let symbols = Kallsyms::parse(&text).unwrap();
            let parse = start.elapsed();
            let bytes = symbols.names.capacity()
                + (symbols.text.capacity() + symbols.data.capacity()) * size_of::<Entry>();
            let start = std::time::Instant::now();
            let locks = symbols.text.iter().filter(|entry| symbols.is_lock_code(entry.address)).count();
            let each = start.elapsed() / symbols.text.len() as u32;
            let start = std::time::Instant::now();
            symbols.address("no such function");
            eprintln!(
                "file {file:?}, parse {parse:?}, {} functions, {locks} of them lock code ({each:?} each), {bytes} \
                 bytes, by name {:?}",
                symbols.text.len(),
                start.elapsed()
            );
        }
    }
}
