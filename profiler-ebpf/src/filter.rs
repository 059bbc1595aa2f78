//! Whose waits are recorded. Decided at a wait's begin, so that an end that finds no begin is simply not ours.

use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use profiler_common::{
    Control,
    control::{SELECT_CGROUP, SELECT_COMM, SELECT_TGID},
    limits::{COMM_LEN, MAX_CGROUPS, MAX_COMMS},
};

use crate::maps::{CGROUPS, CONTROL, TGIDS};

/// The current task, and the settings it is measured under.
#[derive(Clone, Copy)]
pub struct Current {
    pub control: &'static Control,
    /// When the event happened: read before anything else is done, so that our own work is in no wait.
    pub now: u64,
    pub tid: u32,
    pub tgid: u32,
}

/// Nanoseconds of the monotonic clock.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// The settings, unless recording is off.
#[inline(always)]
fn recording() -> Option<&'static Control> {
    let control = CONTROL.get(0)?;
    (control.enabled != 0 && crate::kernel::LOCKSCOPE_ABI_4.load() == 4).then_some(control)
}

/// The current task, unless recording is off or it is lockscope itself.
#[inline(always)]
pub fn current() -> Option<Current> {
    let control = recording()?;
    let now = now();
    task(control, now)
}

/// The same with the time left out, for what only counts: see [`Current::look_at_the_clock`].
#[inline(always)]
pub fn current_untimed() -> Option<Current> {
    task(recording()?, 0)
}

#[inline(always)]
fn task(control: &'static Control, now: u64) -> Option<Current> {
    let both = bpf_get_current_pid_tgid();
    let (tid, tgid) = (both as u32, (both >> 32) as u32);
    if tgid == control.own_tgid {
        return None;
    }
    Some(Current { control, now, tid, tgid })
}

impl Current {
    /// The same task, now.
    #[inline(always)]
    pub fn look_at_the_clock(self) -> Current {
        Current { now: now(), ..self }
    }

    /// Whether a burst is under way, of what runs in bursts only.
    #[inline(always)]
    pub fn in_burst(&self) -> bool {
        self.control.burst != 0
    }

    /// Whether any selector takes this task; without selectors everybody is taken.
    #[inline(always)]
    pub fn is_selected(&self) -> bool {
        let select = self.control.select;
        if select == 0 {
            return true;
        }
        (select & SELECT_TGID != 0 && self.in_tgids())
            || (select & SELECT_CGROUP != 0 && self.in_cgroups())
            || (select & SELECT_COMM != 0 && self.has_name())
    }

    #[inline(always)]
    fn in_tgids(&self) -> bool {
        // SAFETY: the value is not used, only its presence.
        unsafe { TGIDS.get(&self.tgid) }.is_some()
    }

    #[inline(always)]
    fn in_cgroups(&self) -> bool {
        let wanted = self.control.cgroups;
        for index in 0..MAX_CGROUPS as u32 {
            if index >= wanted {
                break;
            }
            if CGROUPS.current_task_under_cgroup(index) == Ok(true) {
                return true;
            }
        }
        false
    }

    #[inline(always)]
    fn has_name(&self) -> bool {
        let Ok(name) = bpf_get_current_comm() else { return false };
        let words = words(&name);
        for index in 0..MAX_COMMS {
            if index as u32 >= self.control.comm_count {
                break;
            }
            if self.control.comms.get(index).map(words_of) == Some(words) {
                return true;
            }
        }
        false
    }
}

#[inline(always)]
fn words_of(name: &[u8; COMM_LEN]) -> [u64; 2] {
    words(name)
}

/// A name as two words, to compare without a byte loop.
#[inline(always)]
fn words(name: &[u8; COMM_LEN]) -> [u64; 2] {
    let first = [name[0], name[1], name[2], name[3], name[4], name[5], name[6], name[7]];
    let second = [name[8], name[9], name[10], name[11], name[12], name[13], name[14], name[15]];
    [u64::from_ne_bytes(first), u64::from_ne_bytes(second)]
}
