//! Reads what `cargo test` prints. A test that finds at run time that this machine cannot do it prints
//! `SKIP name: reason` and returns; it must never be counted as passed.

use std::collections::BTreeMap;

/// The sum over all test programs of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ran and held.
    pub passed: usize,
    /// Ran and did not hold.
    pub failed: usize,
    /// Did not run: ignored, or skipped themselves.
    pub skipped: usize,
    /// `name: reason` of those that skipped themselves.
    pub reasons: Vec<String>,
}

/// Sums all `test result:` lines of `output` and moves self-skipped tests from passed to skipped. The skip lines must
/// be in `output`: run the tests with `--nocapture` or `--show-output`.
pub fn parse_libtest(output: &str) -> Counts {
    let mut counts = Counts::default();
    // By name, since a test may print its line twice; per test program, since two may have tests of one name.
    let mut skips = BTreeMap::new();
    for line in output.lines() {
        if let Some((name, reason)) = skip_line(line) {
            skips.insert(name, reason);
        } else if let Some(result) = line.trim_start().strip_prefix("test result: ") {
            counts.add(result);
            // Under --show-output the lines come before this one, too.
            counts.move_skipped(std::mem::take(&mut skips));
        }
    }
    counts.move_skipped(skips);
    counts
}

impl Counts {
    fn add(&mut self, result: &str) {
        self.passed += number_before(result, " passed");
        self.failed += number_before(result, " failed");
        self.skipped += number_before(result, " ignored");
    }

    fn move_skipped(&mut self, skips: BTreeMap<&str, &str>) {
        self.passed = self.passed.saturating_sub(skips.len());
        self.skipped += skips.len();
        self.reasons.extend(skips.into_iter().map(|(name, reason)| format!("{name}: {reason}")));
    }
}

/// With one thread and `--nocapture` the line follows `test name ... ` directly.
fn skip_line(line: &str) -> Option<(&str, &str)> {
    let line = match line.strip_prefix("test ") {
        Some(rest) => rest.split_once(" ... ")?.1,
        None => line,
    };
    let (name, reason) = line.strip_prefix("SKIP ")?.split_once(": ")?;
    (!name.contains(' ')).then_some((name, reason.trim_end()))
}

fn number_before(result: &str, word: &str) -> usize {
    let before = result.split(word).next().unwrap_or("");
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or("");
    if result.contains(word) { digits.parse().unwrap_or(0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "running 3 tests\ntest a ... ok\ntest b ... ignored\n\n\
        test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.00s\n";

    #[test]
    fn results_of_several_programs_are_summed() {
        let two =
            format!("{ONE}test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n");
        let counts = parse_libtest(&two);
        assert_eq!((counts.passed, counts.failed, counts.skipped), (16, 2, 3));
    }

    #[test]
    fn a_test_that_skips_itself_has_not_passed() {
        let counts = parse_libtest(&format!(
            "test a ... SKIP a: no BTF here\nok\nSKIP b: no root\nSKIP b: no root\n{ONE}"
        ));
        assert_eq!((counts.passed, counts.failed, counts.skipped), (10, 0, 5));
        assert_eq!(counts.reasons, ["a: no BTF here", "b: no root"]);
    }

    #[test]
    fn other_lines_are_no_skips() {
        let counts = parse_libtest(&format!("SKIPPED x: y\nwe SKIP this: really\nSKIP no reason\n{ONE}"));
        assert_eq!((counts.passed, counts.skipped), (12, 3));
        assert_eq!(parse_libtest(""), Counts::default());
    }
}
