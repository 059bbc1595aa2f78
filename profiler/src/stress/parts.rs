//! Stop watches for the parts of an operation.
//!
//! Must not allocate or lock: used within operations.

use super::clock;
use super::fault::Fault;

/// How long each part of the last operation took, ns; none for one it did not have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<const N: usize>([Option<u64>; N]);

impl<const N: usize> Parts<N> {
    pub const fn new() -> Self {
        Self([None; N])
    }

    /// Forgets the operation before.
    pub fn begin(&mut self) {
        self.0 = [None; N];
    }

    /// Does and times part `i`.
    pub fn time<T>(&mut self, i: usize, part: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let begun = clock::now();
        let done = part()?;
        self.0[i] = Some(clock::now() - begun);
        Ok(done)
    }

    pub fn all(&self) -> &[Option<u64>] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_done_has_a_time() {
        let mut parts = Parts::<2>::new();
        parts.time(1, || Ok(())).unwrap();
        assert!(parts.all()[0].is_none() && parts.all()[1].is_some());
        parts.begin();
        assert!(parts.time(0, || Err::<(), _>(Fault::short(super::super::fault::Step::Stat))).is_err());
        assert_eq!(parts.all(), [None, None]);
    }
}
