//! What this host's coverage says about each kind of lock: which parts of a wait can be told, and why others cannot.
//!
//! Must not look at numbers: a zero is never taken for *not measured*, nor the other way round.

use profiler_common::Kind;

use super::{Coverage, CoverageState, Reason};

/// What can be told. An `Err` holds the reason why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Outcomes at rwsems, and the spinning part of their waits.
    pub rwsem: Result<(), Reason>,
    /// Which queued writers were handed the lock.
    pub handed_off: Result<(), Reason>,
    /// Which writers waited as long as the handoff timeout.
    pub handoff_class: Result<(), Reason>,
    /// jbd2's handles counted, and commits timed.
    pub jbd2_counts: Result<(), Reason>,
    /// jbd2's waits timed.
    pub jbd2_waits: Result<(), Reason>,
    /// Starts timed, by cause.
    pub jbd2_starts: Result<(), Reason>,
    /// Holds and stops timed.
    pub jbd2_holds: Result<(), Reason>,
    /// Stops and credits counted.
    pub jbd2_credits: Result<(), Reason>,
    /// fsync timed by part.
    pub fsync: Result<(), Reason>,
    /// Anything of the buffer LRU.
    pub lru: Result<(), Reason>,
    /// Hits in it counted.
    pub lru_hits: Result<(), Reason>,
    /// Lookups counted by outcome.
    pub lru_lookups: Result<(), Reason>,
    /// Lookups sampled.
    pub lru_costs: Result<(), Reason>,
    /// Invalidations counted.
    pub lru_emptied: Result<(), Reason>,
}

impl Abilities {
    /// Reads the lines of the probes. For `rwsem`: The metric's words choose the line: *outcomes*, *handoffs*, *handoff
    /// class*; without a line of its own a metric goes with the others.
    pub fn of(coverage: &[Coverage]) -> Abilities {
        let lines: Vec<&Coverage> = coverage.iter().filter(|line| line.probe == "rwsem").collect();
        let about = |words: &str| {
            let own: Vec<&Coverage> =
                lines.iter().copied().filter(|line| line.metric.contains(words)).collect();
            can(if own.is_empty() { &lines } else { &own })
        };
        let rwsem = about("outcome");
        let also = |words| rwsem.clone().and_then(|()| about(words));
        let of = |probe: &str, metric: &str| can_of(coverage, probe, metric);
        Abilities {
            handed_off: also("handoffs"),
            handoff_class: also("handoff class"),
            rwsem,
            jbd2_counts: of("jbd2", "handles started"),
            jbd2_waits: of("jbd2", "jbd2 waits: "),
            jbd2_starts: of("jbd2", "start latency"),
            jbd2_holds: of("jbd2", "handle hold"),
            jbd2_credits: of("jbd2", "credits"),
            fsync: of("jbd2", "fsync"),
            lru: of("bh-lru", "LRU hits"),
            lru_hits: of("bh-lru", "LRU hits"),
            lru_lookups: of("bh-lru", "LRU lookups, found"),
            lru_costs: of("bh-lru", "by caller"),
            lru_emptied: of("bh-lru", "invalidations"),
        }
    }

    /// The same for a window in which so much was timed: what is taken in bursts is not measured where none fell.
    pub fn in_window(&self, timed_ns: u64) -> Abilities {
        let mut abilities = self.clone();
        if timed_ns == 0 {
            let in_bursts = [
                &mut abilities.jbd2_starts,
                &mut abilities.jbd2_holds,
                &mut abilities.jbd2_credits,
                &mut abilities.lru_hits,
                &mut abilities.lru_lookups,
                &mut abilities.lru_costs,
            ];
            for can in in_bursts {
                *can = can.clone().and(Err(Reason::from("no burst fell into the window")));
            }
        }
        abilities
    }

    /// Whether the spinning part of this kind's waits is known.
    pub fn spin(&self, kind: Option<Kind>) -> Result<(), Reason> {
        match kind {
            Some(Kind::Spin | Kind::Rwlock | Kind::Mutex) => Ok(()),
            Some(Kind::Rwsem) => self.rwsem.clone(),
            Some(Kind::Semaphore | Kind::PercpuRwsem | Kind::Rt) => {
                Err(Reason::from("the tracepoint does not tell spinning apart"))
            }
            Some(
                Kind::Jbd2Locked | Kind::Jbd2Full | Kind::Jbd2Checkpoint | Kind::Commit | Kind::Jbd2Shadow,
            ) => Err(Reason::from("a wait queue: nobody spins there")),
            Some(Kind::Buffer | Kind::Folio) => Err(Reason::from("a bit lock that is slept for")),
            Some(Kind::LruLookup | Kind::LruInvalidate) => Err(Reason::from("no wait")),
            None => Err(Reason::from("several kinds, or an unknown one")),
        }
    }

    /// Whether the queued part is known: everywhere the tracepoint is, since it marks the queue.
    pub fn queue(&self, kind: Option<Kind>) -> Result<(), Reason> {
        match kind {
            Some(_) => Ok(()),
            None => Err(Reason::from("several kinds, or an unknown one")),
        }
    }

    /// Whether outcomes are known.
    pub fn outcomes(&self, kind: Option<Kind>) -> Result<(), Reason> {
        match kind {
            Some(Kind::Rwsem) => self.rwsem.clone(),
            _ => Err(Reason::from("outcomes are kept for rwsems only")),
        }
    }
}

/// Whether the one line of this probe whose metric holds these words is covered.
fn can_of(coverage: &[Coverage], probe: &str, words: &str) -> Result<(), Reason> {
    let line = coverage.iter().find(|line| line.probe == probe && line.metric.contains(words));
    let Some(line) = line else { return Err(Reason::from(format!("the probe {probe} is not in use"))) };
    match (line.state, &line.reason) {
        (CoverageState::Full | CoverageState::Partial, _) => Ok(()),
        (_, Some(reason)) => Err(Reason::from(reason.clone())),
        (_, None) => Err(Reason::from("not measured")),
    }
}

/// Whether any of these lines is covered; else the first reason among them.
fn can(lines: &[&Coverage]) -> Result<(), Reason> {
    if lines.iter().any(|line| matches!(line.state, CoverageState::Full | CoverageState::Partial)) {
        return Ok(());
    }
    let reason = lines.iter().find_map(|line| line.reason.clone()).map(Reason::from);
    Err(reason.unwrap_or(Reason::from("the rwsem probe is not in use")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(metric: &str, state: CoverageState, reason: Option<&str>) -> Coverage {
        Coverage {
            probe: "rwsem".into(),
            metric: metric.into(),
            hook: None,
            state,
            reason: reason.map(str::to_string),
        }
    }

    #[test]
    fn lines_about_outcomes_decide() {
        let queued = line("queued waits", CoverageState::Partial, None);
        let outcomes = line("outcomes", CoverageState::Absent, Some("function probes not permitted"));
        let abilities = Abilities::of(&[queued.clone(), outcomes]);
        assert_eq!(abilities.rwsem, Err(Reason::from("function probes not permitted")));
        assert_eq!(abilities.spin(Some(Kind::Mutex)), Ok(()));
        assert!(abilities.spin(Some(Kind::Rwsem)).is_err());
        assert_eq!(Abilities::of(&[queued]).rwsem, Ok(()));
        let handoffs = line("rwsem handoffs", CoverageState::Absent, Some("inlined"));
        let abilities = Abilities::of(&[line("outcomes", CoverageState::Full, None), handoffs]);
        assert_eq!((&abilities.rwsem, &abilities.handoff_class), (&Ok(()), &Ok(())));
        assert_eq!(abilities.handed_off, Err(Reason::from("inlined")));
        assert!(Abilities::of(&[]).outcomes(Some(Kind::Rwsem)).is_err());
        assert!(abilities.outcomes(Some(Kind::Mutex)).is_err());
    }
}
