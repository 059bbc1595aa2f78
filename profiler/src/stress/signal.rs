//! Ctrl-C, SIGTERM and SIGHUP: counted, not obeyed; the run looks at the count and ends itself.
//!
//! Must not do more in the handler than an atomic add, except at the third signal: a clean-up that hangs in the
//! kernel must not keep the terminal.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static COUNT: AtomicU32 = AtomicU32::new(0);
const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Signals since the last [`Guard::install`]: 1 ends the run early, 2 also drops the report.
pub(super) fn count() -> u32 {
    COUNT.load(Relaxed)
}

extern "C" fn note(_signal: libc::c_int) {
    if COUNT.fetch_add(1, Relaxed) >= 2 {
        // SAFETY: _exit is async-signal-safe.
        unsafe { libc::_exit(130) };
    }
}

/// Counts signals while it lives, then puts the former dispositions back.
pub(super) struct Guard(Vec<(libc::c_int, libc::sigaction)>);

impl Guard {
    pub fn install() -> Self {
        COUNT.store(0, Relaxed);
        Self(SIGNALS.iter().filter_map(|s| Some((*s, replace(*s)?))).collect())
    }
}

/// Returns the former action, or none where nothing was changed.
fn replace(signal: libc::c_int) -> Option<libc::sigaction> {
    // SAFETY: all-zero is a valid sigaction (default action, empty mask).
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    new.sa_sigaction = note as *const () as usize;
    new.sa_flags = libc::SA_RESTART;
    // SAFETY: both point to valid structures; `note` is async-signal-safe.
    let rc = unsafe { libc::sigaction(signal, &new, &mut old) };
    // Under nohup a hang-up stays ignored; SIGINT is taken even so, or a job of a script could not be stopped.
    if rc == 0 && signal == libc::SIGHUP && old.sa_sigaction == libc::SIG_IGN {
        put_back(signal, &old);
        return None;
    }
    (rc == 0).then_some(old)
}

fn put_back(signal: libc::c_int, action: &libc::sigaction) {
    // SAFETY: `action` came from sigaction for the same signal.
    unsafe { libc::sigaction(signal, action, std::ptr::null_mut()) };
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.iter().for_each(|(signal, action)| put_back(*signal, action));
    }
}
