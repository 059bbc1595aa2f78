//! lockscope's kernel side: counts waits into maps. It inserts into no hash, reserves no ring-buffer space and never
//! blocks; unknown keys go whole into a mailbox. What each program is for stands in its own file below `probes`.
#![no_std]
#![no_main]
#![allow(internal_features, reason = "a fetching atomic add exists on this target as an intrinsic only")]
#![feature(core_intrinsics)]

mod account;
mod devices;
mod filter;
mod first_sight;
mod identity;
mod inflight;
mod kernel;
mod log;
mod maps;
mod probes;
mod stack;

/// Never reached: the build fails when a panic is linked in.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The stack, probe-read and clock helpers are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
