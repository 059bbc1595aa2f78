//! Keeps our BPF programs within a share of the machine's CPU time: gives up the dearest things first, in a fixed order, says
//! so, and takes them back when it is quiet.
//!
//! Decides only, from numbers that it is given; must not attach, detach or read a clock.

use std::collections::VecDeque;

/// Times are averaged over this long: bursts are meant to be dear for a moment.
const MEMORY_NS: u64 = 10_000_000_000;
/// No decision before so much was seen since the last one.
const LEAST_NS: u64 = 1_000_000_000;
/// What was given up comes back when the load is below the budget by this factor.
const QUIET_FACTOR: f64 = 4.0;
/// How long it must stay so; doubled each time that taking back was too early.
const FIRST_QUIET_NS: u64 = 10_000_000_000;
const MOST_QUIET_NS: u64 = 320_000_000_000;

/// What is given up, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// No stack is walked: callers are not known.
    Stacks,
    /// Nothing is timed in samples or bursts.
    Samples,
    /// A whole probe, the dearest one.
    Probe(String),
}

impl Step {
    /// The step in words.
    pub fn in_words(&self) -> String {
        match self {
            Step::Stacks => "stacks: waits have no caller".to_owned(),
            Step::Samples => "sampled timings: no bursts, no timed buffer lookups".to_owned(),
            Step::Probe(id) if id == "contention" => {
                "probe contention, and rwsem and jbd2 that rest on it: their waits are not seen".to_owned()
            }
            Step::Probe(id) => format!("probe {id}: what it alone sees is not seen"),
        }
    }
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Keep,
    /// Give this up.
    Shed(Step),
    /// Take this back.
    Recover(Step),
}

/// What a probe has cost so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeCost {
    /// Its id.
    pub id: String,
    /// Nanoseconds of its programs.
    pub run_ns: u64,
    /// Whether it can be detached and attached again.
    pub pausable: bool,
}

/// A probe, and those that are wrong without it: rwsem takes the queued part of a wait from the lock tracepoints, jbd2 the locks
/// among a start's causes.
pub fn with_dependents(id: &str) -> Vec<&str> {
    if id == "contention" { vec!["contention", "rwsem", "jbd2"] } else { vec![id] }
}

/// The costs at one moment.
struct Sample {
    at_ns: u64,
    probes: Vec<ProbeCost>,
}

/// The budget and what was given up to keep it.
pub struct Governor {
    most_percent: f64,
    cpus: u32,
    samples: VecDeque<Sample>,
    shed: Vec<Step>,
    quiet_needed_ns: u64,
    quiet_since_ns: Option<u64>,
    recovered_at_ns: Option<u64>,
    /// The share at the last decision.
    decided_percent: f64,
}

impl Governor {
    /// A budget in per cent of the CPU time of so many CPUs; 100 and more is none.
    pub fn new(most_percent: f64, cpus: u32) -> Governor {
        Governor {
            most_percent,
            cpus: cpus.max(1),
            samples: VecDeque::new(),
            shed: Vec::new(),
            quiet_needed_ns: FIRST_QUIET_NS,
            quiet_since_ns: None,
            recovered_at_ns: None,
            decided_percent: 0.0,
        }
    }

    /// The budget, in per cent.
    pub fn most_percent(&self) -> f64 {
        self.most_percent
    }

    /// What is given up now.
    pub fn shed(&self) -> &[Step] {
        &self.shed
    }

    /// Takes in the costs at a moment, once a second or so, and decides. What it says is taken for done.
    pub fn observe(&mut self, at_ns: u64, probes: Vec<ProbeCost>) -> Verdict {
        if self.most_percent >= 100.0 {
            return Verdict::Keep;
        }
        self.samples.push_back(Sample { at_ns, probes });
        let Some(percent) = self.percent() else { return Verdict::Keep };
        self.decided_percent = percent;
        // A burst is dear for a moment: where little was seen, it must be far over.
        let far_over = percent > self.most_percent * QUIET_FACTOR;
        if far_over || (percent > self.most_percent && self.seen_ns() >= MEMORY_NS) {
            return self.give_up(at_ns);
        }
        if percent * QUIET_FACTOR >= self.most_percent {
            self.quiet_since_ns = None;
        } else if at_ns - *self.quiet_since_ns.get_or_insert(at_ns) >= self.quiet_needed_ns {
            return self.take_back(at_ns);
        }
        while self.seen_ns() > 2 * MEMORY_NS {
            self.samples.pop_front();
        }
        Verdict::Keep
    }

    /// The share that the last decision rested on, in per cent.
    pub fn decided_percent(&self) -> f64 {
        self.decided_percent
    }

    /// The share of the machine that our programs take, in per cent, since the last decision or over the last ten seconds;
    /// `None` when too little was seen.
    fn percent(&self) -> Option<f64> {
        let last = self.samples.back()?;
        let first = self.samples.iter().find(|sample| last.at_ns - sample.at_ns <= MEMORY_NS)?;
        let passed_ns = last.at_ns - first.at_ns;
        if passed_ns < LEAST_NS {
            return None;
        }
        let ran_ns = total(&last.probes).saturating_sub(total(&first.probes));
        Some(ran_ns as f64 * 100.0 / (passed_ns as f64 * f64::from(self.cpus)))
    }

    fn seen_ns(&self) -> u64 {
        match (self.samples.front(), self.samples.back()) {
            (Some(first), Some(last)) => last.at_ns - first.at_ns,
            _ => 0,
        }
    }

    fn give_up(&mut self, at_ns: u64) -> Verdict {
        let Some(step) = self.next_step() else { return Verdict::Keep };
        if self.recovered_at_ns.is_some_and(|at| at_ns - at < self.quiet_needed_ns) {
            self.quiet_needed_ns = (self.quiet_needed_ns * 2).min(MOST_QUIET_NS);
        }
        self.shed.push(step.clone());
        self.begin_anew();
        Verdict::Shed(step)
    }

    fn next_step(&self) -> Option<Step> {
        [Step::Stacks, Step::Samples]
            .into_iter()
            .find(|step| !self.shed.contains(step))
            .or_else(|| self.dearest().map(Step::Probe))
    }

    /// The probe that took most since the last decision.
    fn dearest(&self) -> Option<String> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let before =
            |id: &str| first.probes.iter().find(|probe| probe.id == id).map_or(0, |probe| probe.run_ns);
        let is_shed = |id: &str| {
            let gone = |step: &Step| matches!(step, Step::Probe(shed) if with_dependents(shed).contains(&id));
            self.shed.iter().any(gone)
        };
        let left = last.probes.iter().filter(|probe| probe.pausable && !is_shed(&probe.id));
        let grown = left.map(|probe| (probe.run_ns.saturating_sub(before(&probe.id)), &probe.id));
        grown.max().filter(|(ns, _)| *ns > 0).map(|(_, id)| id.clone())
    }

    fn take_back(&mut self, at_ns: u64) -> Verdict {
        let Some(step) = self.shed.pop() else {
            self.quiet_needed_ns = FIRST_QUIET_NS;
            return Verdict::Keep;
        };
        self.recovered_at_ns = Some(at_ns);
        self.begin_anew();
        Verdict::Recover(step)
    }

    /// What was seen before a decision says nothing of what comes after it.
    fn begin_anew(&mut self) {
        self.quiet_since_ns = None;
        let last = self.samples.pop_back();
        self.samples.clear();
        self.samples.extend(last);
    }
}

fn total(probes: &[ProbeCost]) -> u64 {
    probes.iter().fold(0, |sum, probe| sum.saturating_add(probe.run_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Runs seconds of a load in per cent of one CPU of four, as (rwsem, contention); says what was decided.
    fn run(
        governor: &mut Governor,
        state: &mut (u64, u64, u64),
        seconds: u64,
        load: (u64, u64),
    ) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for _ in 0..seconds {
            state.0 += SECOND;
            state.1 += load.0 * SECOND / 100;
            state.2 += load.1 * SECOND / 100;
            let cost = |id: &str, run_ns| ProbeCost { id: id.to_owned(), run_ns, pausable: true };
            verdicts
                .push(governor.observe(state.0, vec![cost("rwsem", state.1), cost("contention", state.2)]));
        }
        verdicts.retain(|verdict| *verdict != Verdict::Keep);
        verdicts
    }

    #[test]
    fn a_flood_sheds_stacks_then_samples_then_the_dearest_probe_and_a_quiet_host_recovers() {
        let mut governor = Governor::new(1.0, 4);
        let mut state = (0, 0, 0);
        assert_eq!(run(&mut governor, &mut state, 20, (1, 1)), []);
        let steps = run(&mut governor, &mut state, 10, (20, 60));
        let shed: Vec<Step> = vec![Step::Stacks, Step::Samples, Step::Probe("contention".into())];
        assert_eq!(steps[..3], shed.clone().into_iter().map(Verdict::Shed).collect::<Vec<_>>()[..]);
        let steps = run(&mut governor, &mut state, 200, (0, 0));
        let mut back: Vec<Verdict> = shed.into_iter().map(Verdict::Recover).collect();
        back.reverse();
        assert_eq!(steps[steps.len() - 3..], back[..]);
        assert!(governor.shed().is_empty());
    }

    #[test]
    fn just_within_the_budget_nothing_is_given_up_and_nothing_taken_back() {
        let mut governor = Governor::new(1.0, 4);
        let mut state = (0, 0, 0);
        assert_eq!(run(&mut governor, &mut state, 60, (2, 1)), []);
        assert_eq!(run(&mut governor, &mut state, 1, (50, 0)), [Verdict::Shed(Step::Stacks)]);
        assert_eq!(run(&mut governor, &mut state, 60, (2, 1)), []);
    }

    #[test]
    fn taking_back_too_early_makes_it_slower() {
        let mut governor = Governor::new(1.0, 4);
        let mut state = (0, 0, 0);
        run(&mut governor, &mut state, 3, (50, 0));
        while governor.shed() != [Step::Stacks] {
            run(&mut governor, &mut state, 1, (0, 0));
        }
        run(&mut governor, &mut state, 12, (0, 0));
        let before = governor.quiet_needed_ns;
        run(&mut governor, &mut state, 3, (50, 0));
        assert!(governor.quiet_needed_ns > before, "{before}");
    }

    #[test]
    fn no_budget_gives_nothing_up() {
        let mut governor = Governor::new(100.0, 1);
        assert_eq!(run(&mut governor, &mut (0, 0, 0), 10, (90, 9)), []);
    }
}
