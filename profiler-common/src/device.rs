//! Devices as the kernel keeps them (include/linux/kdev_t.h, `dev_t`): twelve bits of major number, twenty of minor.

const MINOR_BITS: u32 = 20;

/// The number of a device.
pub const fn number(major: u32, minor: u32) -> u32 {
    major << MINOR_BITS | minor
}

/// Its major and minor number.
pub const fn parts(device: u32) -> (u32, u32) {
    (device >> MINOR_BITS, device & ((1 << MINOR_BITS) - 1))
}

/// The number of `MAJ:MIN`; `None` when the text is something else.
pub fn parse(text: &str) -> Option<u32> {
    let (major, minor) = text.split_once(':')?;
    Some(number(major.parse().ok()?, minor.parse().ok()?))
}
