//! Programs that are attached for moments only, since they would cost too much all the time: those at functions that a busy
//! file system enters a million times a second. Sampling inside a program would not help – being called is most of its cost.
//! Counts nothing.

use std::{
    mem::offset_of,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result};
use profiler_common::Control;

use super::{Mapped, raw};

/// How long a burst lasts. Attaching and detaching take about as long again.
const BURST: Duration = Duration::from_millis(200);
/// From one burst to the next in the long run. The first ones come sooner, so that a short recording has some.
const PERIOD: Duration = Duration::from_secs(20);
const FIRST_PERIOD: Duration = Duration::from_secs(10);
/// A command that is followed should have begun its work.
const BEFORE_THE_FIRST: Duration = Duration::from_secs(2);
/// How long the thread is deaf to being stopped.
const NAP: Duration = Duration::from_millis(20);

/// A program and where it goes.
pub struct Place {
    /// The loaded program.
    pub program: OwnedFd,
    /// How it is attached.
    pub how: How,
}

/// How a program is attached.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// As it was loaded, with what it is told.
    Tracing(raw::Tracing, u64),
    /// To a raw tracepoint.
    RawTracepoint(&'static str),
}

impl How {
    /// Attaches a loaded program.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn attach(self, program: BorrowedFd<'_>) -> std::io::Result<OwnedFd> {
        match self {
            How::Tracing(tracing, cookie) => raw::attach(program, tracing, cookie),
            How::RawTracepoint(name) => raw::attach_raw_tracepoint(program, name),
        }
    }
}

/// How long what runs in bursts has run so far.
#[derive(Debug, Default)]
pub struct BurstClock {
    past_ns: AtomicU64,
    since_ns: AtomicU64,
}

impl BurstClock {
    /// Nanoseconds up to `now_ns` of the monotonic clock.
    pub fn ran_ns(&self, now_ns: u64) -> u64 {
        let since = self.since_ns.load(Ordering::Acquire);
        let current = if since == 0 { 0 } else { now_ns.saturating_sub(since) };
        self.past_ns.load(Ordering::Acquire) + current
    }

    fn begin(&self, now_ns: u64) {
        self.since_ns.store(now_ns, Ordering::Release);
    }

    fn end(&self, now_ns: u64) {
        let since = self.since_ns.swap(0, Ordering::AcqRel);
        if since != 0 {
            self.past_ns.fetch_add(now_ns.saturating_sub(since), Ordering::AcqRel);
        }
    }
}

/// The thread that attaches and detaches. Dropping it ends the burst under way.
pub struct Bursts {
    stop: Arc<AtomicBool>,
    paused: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Bursts {
    /// Begins the first burst soon; without places there is one burst without end.
    pub fn start(
        places: Arc<Vec<Place>>,
        control: Arc<Mapped<Control>>,
        clock: Arc<BurstClock>,
        now_ns: fn() -> u64,
    ) -> Bursts {
        let (stop, failure) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let paused = Arc::new(AtomicBool::new(false));
        if places.is_empty() {
            clock.begin(now_ns());
            set_burst(&control, 1);
            return Bursts { stop, paused, thread: None, failure };
        }
        let (stopped, failed, held) = (Arc::clone(&stop), Arc::clone(&failure), Arc::clone(&paused));
        let thread = std::thread::spawn(move || {
            let mut number = 0;
            wait(BEFORE_THE_FIRST, &stopped);
            while !stopped.load(Ordering::Relaxed) {
                if held.load(Ordering::Relaxed) {
                    wait(NAP, &stopped);
                    continue;
                }
                number += 1;
                if let Err(error) = burst(&places, &control, &clock, number, now_ns, &stopped) {
                    *lock(&failed) = Some(format!("{error:#}"));
                    return;
                }
                wait(pause_after(number), &stopped);
            }
        });
        Bursts { stop, paused, thread: Some(thread), failure }
    }

    /// Holds back further bursts, or lets them come again.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Why there are no further bursts, if there are none; told once.
    pub fn take_failure(&self) -> Option<String> {
        lock(&self.failure).take()
    }

    /// Ends the burst under way, and all to come.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Bursts {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn burst(
    places: &[Place],
    control: &Mapped<Control>,
    clock: &BurstClock,
    number: u32,
    now_ns: fn() -> u64,
    stopped: &AtomicBool,
) -> Result<()> {
    let attach = |place: &Place| place.how.attach(place.program.as_fd());
    let links: Vec<OwnedFd> =
        places.iter().map(attach).collect::<std::io::Result<_>>().context("attaching for a burst")?;
    set_burst(control, number);
    clock.begin(now_ns());
    wait(BURST, stopped);
    set_burst(control, 0);
    clock.end(now_ns());
    // The busiest are attached last, and leave first.
    links.into_iter().rev().for_each(drop);
    Ok(())
}

/// How long nothing is attached after this burst: twice as long each time, up to the period.
fn pause_after(number: u32) -> Duration {
    let period = FIRST_PERIOD.saturating_mul(1 << (number - 1).min(8)).min(PERIOD);
    period.saturating_sub(BURST)
}

fn set_burst(control: &Mapped<Control>, number: u32) {
    control.set_word(offset_of!(Control, burst), number);
}

fn wait(duration: Duration, stopped: &AtomicBool) {
    let end = std::time::Instant::now() + duration;
    while !stopped.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(NAP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_come_less_often_as_time_goes_on() {
        let pauses: Vec<u128> = (1..=5).map(|number| pause_after(number).as_millis()).collect();
        assert_eq!(pauses, [9800, 19_800, 19_800, 19_800, 19_800]);
        assert_eq!(pause_after(u32::MAX).as_millis(), 19_800);
    }

    #[test]
    fn the_clock_counts_bursts_and_the_one_under_way() {
        let clock = BurstClock::default();
        assert_eq!(clock.ran_ns(1000), 0);
        clock.begin(100);
        assert_eq!(clock.ran_ns(150), 50);
        clock.end(200);
        clock.end(300);
        clock.begin(1000);
        assert_eq!(clock.ran_ns(1010), 110);
    }
}
