//! Exit codes, in one place.

/// Done.
pub const DONE: u8 = 0;
/// A gate tripped.
pub const GATE: u8 = 1;
/// Wrong usage, or an error.
pub const ERROR: u8 = 2;
/// This host cannot run it: rights, kernel, BTF.
pub const CANNOT: u8 = 3;
/// Left at the second Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// This host cannot run it: an error that ends with [`CANNOT`].
#[derive(Debug)]
pub struct CannotRun(pub String);

impl std::fmt::Display for CannotRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CannotRun {}

/// The exit code for an error: a closed pipe is no error at all.
pub fn code_of(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<CannotRun>().is_some() {
        return CANNOT;
    }
    let pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(pipe) { DONE } else { ERROR }
}
