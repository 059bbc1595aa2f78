//! The memory layout that the BPF programs and user space share: `no_std`, plain integers, explicit padding.
//!
//! Nothing here reads a clock, knows a kernel structure or allocates. A change of any size or order is a change of
//! the ABI between the committed object and the program: the number in the name of the object's global LOCKSCOPE_ABI_n
//! must change with it (profiler-ebpf/src/kernel.rs, profiler/src/load/mod.rs), and the loader then refuses an old one.
#![no_std]
#![forbid(unsafe_code)]

pub mod bh_lru;
pub mod cell;
pub mod control;
pub mod device;
pub mod first_sight;
pub mod hist;
pub mod inflight;
pub mod journal;
pub mod key;
pub mod limits;
pub mod loss;

pub use cell::Cell;
pub use control::Control;
pub use first_sight::Letter;
pub use inflight::Interval;
pub use key::{CellKey, CellRef, Kind, Mode, OwnerKind};
