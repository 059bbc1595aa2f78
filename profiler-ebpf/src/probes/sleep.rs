//! Waits that no lock tracepoint shows, timed as a whole: functions that are entered only to wait – in jbd2's wait queues, for a
//! buffer's or a folio's bit lock.
//!
//! The generic entry and exit programs (probes/rwsem.rs) hand over to here. A wait for a lock inside such a function is
//! a row of its own and taken out of this one: a wait belongs to the innermost place.

use profiler_common::{
    Kind, Mode, OwnerKind,
    inflight::{
        FUNC_JBD2_SHADOW, FUNC_JBD2_WAIT_COMMIT, FUNC_JBD2_WAIT_LOCKED, FUNC_JBD2_WAIT_SPACE,
        FUNC_LOCK_BUFFER, PHASE_QUEUE,
    },
    loss::Counter,
};

use crate::{
    account::Wait,
    filter::Current,
    inflight::{self, Begin},
    kernel::{self, ABSENT, Owner},
    maps::count,
};

/// T_RUNNING (include/linux/jbd2.h): the transaction still takes handles.
const T_RUNNING: u32 = 0;

/// A timed function is entered: its first two arguments.
#[inline(always)]
pub fn enter(current: &Current, func: u8, object: u64, second: u64) {
    if func == FUNC_JBD2_SHADOW && second as u32 != kernel::BIT_SHADOW.load() {
        return;
    }
    count(Counter::Entries);
    let Some(home) = inflight::claim_task_home(current.tid) else { return };
    if let Some(stale) = home.find_func(func) {
        home.forget(stale);
    }
    let kind = match func {
        FUNC_JBD2_WAIT_LOCKED => cause(object),
        FUNC_JBD2_WAIT_SPACE => Kind::Jbd2Checkpoint,
        FUNC_JBD2_WAIT_COMMIT => Kind::Commit,
        FUNC_JBD2_SHADOW => Kind::Jbd2Shadow,
        FUNC_LOCK_BUFFER => Kind::Buffer,
        _ => Kind::Folio,
    };
    let owner = Owner { kind: OwnerKind::NotKept as u8, tgid: 0, word: 0 };
    let begin =
        Begin { lock: object, kind, mode: Mode::Exclusive, phase: PHASE_QUEUE, flags: 0, func, owner };
    home.open(current, &begin);
}

/// Why `wait_transaction_locked` was entered: a transaction that still runs has no room left, any other is locked.
#[inline(always)]
fn cause(journal: u64) -> Kind {
    let (running, state) = (kernel::OFF_JOURNAL_RUNNING.load(), kernel::OFF_TRANSACTION_STATE.load());
    if running == ABSENT || state == ABSENT {
        return Kind::Jbd2Locked;
    }
    let transaction: u64 = kernel::read(journal + running as u64).unwrap_or(0);
    match kernel::read::<u32>(transaction + state as u64) {
        Some(T_RUNNING) if transaction != 0 => Kind::Jbd2Full,
        _ => Kind::Jbd2Locked,
    }
}

/// Whether a timed function is one of these.
#[inline(always)]
pub fn is_ours(func: u8) -> bool {
    func >= FUNC_JBD2_WAIT_LOCKED
}

/// A timed function is left.
#[inline(always)]
pub fn leave(current: &Current, func: u8) -> Option<Wait> {
    let home = inflight::task_home(current.tid);
    let Some((home, open)) = home.and_then(|home| Some((home, home.find_func(func)?))) else {
        // That function waits for many bits, of which one is ours.
        if func != FUNC_JBD2_SHADOW {
            inflight::miss_entry(current);
        }
        return None;
    };
    count(Counter::Exits);
    let (mut wait, _) = inflight::finish(&home, open, current.now)?;
    wait.wait_ns = wait.wait_ns.saturating_sub(wait.spin_ns);
    wait.queue_ns = wait.wait_ns;
    wait.spin_ns = 0;
    Some(wait)
}
