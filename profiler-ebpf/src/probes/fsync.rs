//! Probe `jbd2`, fsync: where `ext4_sync_file` spends its time – writing data and waiting for it, waiting for a commit, flushing
//! the device. Sums only; the commit's wait is told by whoever timed it.

use aya_ebpf::{
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};
use profiler_common::{
    Kind,
    inflight::{FUNC_FSYNC, FUNC_FSYNC_WRITE},
    journal::{FSYNC_PARTS, Fsync, FsyncPart},
    limits::STALE_NS,
    loss::Counter,
};

use crate::{
    account::Wait,
    filter::{self, Current},
    kernel::{self, argument, cookie, read},
    maps::{FSYNCS, add_u64, count, swap_if},
    probes::handle::{cell_of, journal_number, kind_of},
};

/// `ext4_sync_file`, or one of its parts, is entered: the attach cookie says which.
#[fentry(function = "any")]
pub fn fsync_entry(ctx: FEntryContext) -> i32 {
    let Some(current) = filter::current() else { return 0 };
    if cookie(&ctx) != FUNC_FSYNC {
        if let Some(sync) = fsync_of(current.tid) {
            sync.part_ns = current.now;
        }
        return 0;
    }
    if !current.is_selected() {
        return 0;
    }
    match claim(&current) {
        Some(sync) => *sync = Fsync { tid: sync.tid, begin_ns: current.now, ..Fsync::default() },
        None => count(Counter::HandleCollision),
    }
    0
}

/// The same is left.
#[fexit(function = "any")]
pub fn fsync_exit(ctx: FExitContext) -> i32 {
    let Some(current) = filter::current() else { return 0 };
    let Some(sync) = fsync_of(current.tid) else { return 0 };
    let func = cookie(&ctx);
    if func == FUNC_FSYNC {
        sync.parts[FsyncPart::Total as usize] = current.now.saturating_sub(sync.begin_ns);
        sync.parts[FsyncPart::Calls as usize] = 1;
        add(sync, device_of(argument(&ctx, 0)));
    } else if sync.part_ns != 0 {
        let took = current.now.saturating_sub(sync.part_ns);
        sync.part_ns = 0;
        let part = if func == FUNC_FSYNC_WRITE { FsyncPart::WriteAndWait } else { FsyncPart::Flush };
        sync.parts[part as usize] += took;
    }
    0
}

/// A wait for a commit has ended: if its thread is in fsync, it is a part of that.
#[inline(always)]
pub fn note(wait: &Wait) {
    if kind_of(wait) != Kind::Commit as u8 {
        return;
    }
    if let Some(sync) = fsync_of(wait.tid)
        && sync.part_ns == 0
    {
        // While data is written it is a part of that.
        sync.parts[FsyncPart::CommitWait as usize] += wait.whole_ns;
    }
}

#[inline(always)]
fn add(sync: &mut Fsync, device: Option<u32>) {
    if let Some(cell) = device.and_then(|device| cell_of(journal_number(device))) {
        for part in 0..FSYNC_PARTS {
            // SAFETY: `part` is below the array's length.
            add_u64(unsafe { (&raw mut (*cell).fsync as *mut u64).add(part) }, sync.parts[part]);
        }
    }
    // SAFETY: a word of a map value that is this thread's.
    unsafe { core::ptr::write_volatile(&raw mut sync.tid, 0) };
}

/// The device of a file's file system.
#[inline(always)]
fn device_of(file: u64) -> Option<u32> {
    let inode: u64 = read(file + kernel::OFF_FILE_INODE.load() as u64)?;
    let sb: u64 = read(inode + kernel::OFF_INODE_SB.load() as u64)?;
    read(sb + kernel::OFF_SB_DEV.load() as u64)
}

#[inline(always)]
fn place_of(tid: u32) -> Option<&'static mut Fsync> {
    let place = FSYNCS.get_ptr_mut(tid & kernel::HANDLE_MASK.load())?;
    // SAFETY: a map value; only the thread that it names writes it.
    Some(unsafe { &mut *place })
}

#[inline(always)]
fn fsync_of(tid: u32) -> Option<&'static mut Fsync> {
    place_of(tid).filter(|sync| tid != 0 && sync.tid == tid as u64)
}

#[inline(always)]
fn claim(current: &Current) -> Option<&'static mut Fsync> {
    let tid = current.tid;
    let sync = place_of(tid)?;
    let holder = sync.tid;
    if holder == tid as u64 {
        return Some(sync);
    }
    if holder != 0 && current.now.saturating_sub(sync.begin_ns) < STALE_NS {
        return None;
    }
    let (_, taken) = swap_if(&raw mut sync.tid, holder, tid as u64);
    taken.then_some(sync)
}
