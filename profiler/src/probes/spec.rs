//! What a probe is: a sentence, its hooks in order of preference, what it costs, and what is lost without it.

use crate::kernel::features::Features;
use crate::snapshot::{Coverage, CoverageState};

/// A probe, as data.
#[derive(Debug)]
pub struct ProbeSpec {
    /// Value of `--probe`.
    pub id: &'static str,
    /// What it measures, in one sentence.
    pub sentence: &'static str,
    /// What it costs where it is attached.
    pub cost: &'static str,
    /// What cannot be seen without it.
    pub lost: &'static str,
    /// Ways to attach it, the best first.
    pub hooks: &'static [Hook],
    /// What it lets us see on this host, given what came of attaching it.
    pub coverage: fn(&Attached, &Features) -> Vec<Coverage>,
}

impl ProbeSpec {
    /// A line of this probe's coverage.
    pub fn line(
        &self,
        metric: &str,
        hook: Option<String>,
        state: CoverageState,
        reason: Option<String>,
    ) -> Coverage {
        Coverage { probe: self.id.to_owned(), metric: metric.to_owned(), hook, state, reason }
    }
}

/// One way to attach a probe: all its programs, or none.
#[derive(Debug)]
pub struct Hook {
    /// The field's word: `tp_btf`, `raw_tp`, `fentry/fexit`, `kprobe/kretprobe`.
    pub name: &'static str,
    /// Programs in the order of attaching: ends before begins, so that a begin never lacks its end.
    pub attachments: &'static [Attachment],
}

/// One program at one place.
#[derive(Debug)]
pub struct Attachment {
    /// The program's name in the object.
    pub program: &'static str,
    /// Where it goes.
    pub target: Target,
    /// Whether the hook stands without it.
    pub optional: bool,
    /// Whether it runs in bursts unless the probe was asked for by name.
    pub bursts: bool,
}

impl Attachment {
    /// A program without which the hook does not stand.
    pub const fn needed(program: &'static str, target: Target) -> Attachment {
        Attachment { program, target, optional: false, bursts: false }
    }

    /// A program that the hook stands without.
    pub const fn optional(program: &'static str, target: Target) -> Attachment {
        Attachment { program, target, optional: true, bursts: false }
    }

    /// The same, in bursts: at a function that is entered too often to pay for all the time.
    pub const fn in_bursts(self) -> Attachment {
        Attachment { bursts: true, ..self }
    }
}

/// A place in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A tracepoint with BTF types.
    BtfTracepoint(&'static str),
    /// A raw tracepoint, by name.
    RawTracepoint(&'static str),
    /// A function's entry, with the cookie that the generic program is told.
    Entry(&'static str, u8),
    /// A function's exit.
    Exit(&'static str, u8),
    /// A function's entry by kprobe.
    Kprobe(&'static str),
    /// A function's return by kretprobe: loses returns when too many tasks sleep inside.
    Kretprobe(&'static str),
}

impl Target {
    /// The kernel's name of the place.
    pub fn name(self) -> &'static str {
        match self {
            Target::BtfTracepoint(name)
            | Target::RawTracepoint(name)
            | Target::Entry(name, _)
            | Target::Exit(name, _)
            | Target::Kprobe(name)
            | Target::Kretprobe(name) => name,
        }
    }
}

/// What a figure that is taken in bursts is told with.
pub const IN_BURSTS: &str =
    "in bursts of 0.2 s every 20 s; ask for the probe by name to have it all the time";

/// What came of attaching one probe.
#[derive(Clone, Debug, Default)]
pub struct Attached {
    /// Whether it was asked for.
    pub wanted: bool,
    /// The hook that stands, if any.
    pub hook: Option<&'static str>,
    /// Kinds of locks that are recorded, bits 1 << kind; the others are filtered out though the hook stands.
    pub kinds: u32,
    /// Whether a part of it runs in bursts.
    pub in_bursts: bool,
    /// Why each hook that was tried before does not stand.
    pub failures: Vec<String>,
    /// Optional programs that are missing, by target, with the reason.
    pub missing: Vec<(String, String)>,
}

impl Attached {
    /// Why a part that needs these targets does not stand; `None` when it does.
    pub fn lacks(&self, needs: &[&str]) -> Option<String> {
        let (target, reason) = self.missing.iter().find(|(target, _)| needs.contains(&target.as_str()))?;
        Some(format!("{target}: {reason}"))
    }

    /// Why the probe does not stand, in one line.
    pub fn reason(&self) -> String {
        if !self.wanted {
            return "not asked for".to_owned();
        }
        if self.failures.is_empty() {
            return "not attached".to_owned();
        }
        self.failures.join("; ")
    }
}
