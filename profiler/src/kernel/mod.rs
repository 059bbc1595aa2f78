//! What the running kernel tells about itself: types (BTF), symbols (kallsyms) and features.
//!
//! Everything here only reads. Nothing is attached, loaded or changed, no kernel version number decides anything,
//! and nothing knows about maps, counters or the screen.

pub mod btf;
pub mod features;
pub mod kallsyms;
pub mod memory;
pub mod types;
