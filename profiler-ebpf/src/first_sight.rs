//! Writes the wait of an unknown key whole into this CPU's mailbox. Nothing is inserted anywhere from a probe.

use core::sync::atomic::{Ordering, compiler_fence};

use aya_ebpf::helpers::bpf_get_current_comm;
use profiler_common::{
    Letter,
    limits::{COMM_LEN, MAILBOX_MARGIN, MAX_FRAMES},
    loss::Counter,
};

use crate::{
    account::Wait,
    kernel,
    maps::{MAILBOX, MAILBOX_ENDS, count, cpu, fetch_increment},
    stack::Stack,
};

/// Posts one wait. `false` when the mailbox is full; that is counted by the caller.
#[inline(always)]
pub fn post(wait: &Wait, stack: &Stack) -> bool {
    let cpu = cpu();
    let Some(ends) = MAILBOX_ENDS.get_ptr_mut(cpu) else { return false };
    let mask = kernel::MAILBOX_MASK.load() as u64;
    // SAFETY: `ends` is a map value; user space moves the tail, so both are read as they are now.
    let (head, tail) =
        unsafe { (core::ptr::read_volatile(&(*ends).head), core::ptr::read_volatile(&(*ends).tail)) };
    if head.wrapping_sub(tail) + MAILBOX_MARGIN > mask {
        return false;
    }
    // SAFETY: as above.
    let position = fetch_increment(unsafe { &raw mut (*ends).head });
    let slot = cpu as u64 * (mask + 1) + (position & mask);
    let Some(letter) = MAILBOX.get_ptr_mut(slot as u32) else { return false };
    write(letter, wait, stack);
    // SAFETY: `letter` is a map value. The sequence is written last; x86 keeps the order of stores, and the fence
    // keeps the compiler's.
    unsafe {
        compiler_fence(Ordering::Release);
        core::ptr::write_volatile(&raw mut (*letter).sequence, position + 1);
    }
    count(Counter::Letters);
    true
}

#[inline(always)]
fn write(letter: *mut Letter, wait: &Wait, stack: &Stack) {
    // SAFETY: `letter` is a map value that this program has reserved.
    let letter = unsafe { &mut *letter };
    letter.sequence = 0;
    letter.key = wait.key;
    letter.address = wait.address;
    letter.wait_ns = wait.wait_ns;
    letter.spin_ns = wait.spin_ns;
    letter.queue_ns = wait.queue_ns;
    letter.outcomes = wait.outcomes;
    letter.tid = wait.tid;
    letter.frame_count = stack.count;
    letter.comm = bpf_get_current_comm().unwrap_or([0; COMM_LEN]);
    if stack.frames.is_null() {
        return;
    }
    for index in 0..MAX_FRAMES {
        if index as u32 >= stack.count {
            break;
        }
        // SAFETY: `frames` is scratch room of MAX_FRAMES words and `index` is below that.
        unsafe {
            let frame = *(stack.frames as *const u64).add(index);
            *letter.frames.as_mut_ptr().add(index) = frame;
        }
    }
}
