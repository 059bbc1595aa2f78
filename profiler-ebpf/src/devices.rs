//! Gives small numbers to devices, so that what is counted of each lies in plain arrays. A number once given stays; when none
//! is left, the last place is everybody else's. Nothing here counts.

use aya_ebpf::maps::Array;

use crate::maps::swap_if;

/// Places that one device may lie in.
const TRIES: u32 = 8;

/// The number of a device (`dev_t` as the kernel has it) in a table of so many places, a power of two.
#[inline(always)]
pub fn number(table: &Array<u64>, places: u32, device: u32) -> u32 {
    let wanted = device as u64 + 1;
    let first = device.wrapping_mul(0x9e37_79b1) >> 16;
    for step in 0..TRIES {
        let place = first.wrapping_add(step) & (places - 1);
        if place != places - 1 && is_at(table, place, wanted) {
            return place;
        }
    }
    places - 1
}

#[inline(always)]
fn is_at(table: &Array<u64>, place: u32, wanted: u64) -> bool {
    let Some(word) = table.get_ptr_mut(place) else { return false };
    // SAFETY: a map value.
    let found = unsafe { core::ptr::read_volatile(word) };
    if found != 0 {
        return found == wanted;
    }
    let (before, taken) = swap_if(word, 0, wanted);
    taken || before == wanted
}
