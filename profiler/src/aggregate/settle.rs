//! Keeps differences of waits in progress from making a row negative.
//!
//! A wait in progress has no stack, so its elapsed part may have counted in another row of its lock than the one it
//! ends in; the first then owes what the second has too much. Debts are paid within the lock, so that the lock's sum
//! stays exact. Must not invent or lose time: what cannot be paid is handed back.

/// Sets negative entries to 0 and takes what they owed from the largest others. What nobody could pay is returned.
pub fn settle(values: &mut [i128]) -> i128 {
    let mut debt = 0;
    for value in values.iter_mut().filter(|value| **value < 0) {
        debt -= *value;
        *value = 0;
    }
    while debt > 0 {
        let Some(largest) = values.iter_mut().max().filter(|value| **value > 0) else { break };
        let paid = debt.min(*largest);
        *largest -= paid;
        debt -= paid;
    }
    debt
}

/// Takes as much of the debt as this has; what is left of the debt is returned.
pub fn pay(debt: i128, from: &mut u64) -> i128 {
    let paid = debt.min(i128::from(*from));
    *from -= clamp(paid);
    debt - paid
}

/// The nearest number that can be shown.
pub fn clamp(value: i128) -> u64 {
    u64::try_from(value.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debts_are_paid_by_the_largest_first() {
        let mut values = [-5, 3, 10, 0];
        assert_eq!(settle(&mut values), 0);
        assert_eq!(values, [0, 3, 5, 0]);
        let mut values = [-5, 3, -1];
        assert_eq!(settle(&mut values), 3);
        assert_eq!(values, [0, 0, 0]);
        assert_eq!(settle(&mut []), 0);
    }

    #[test]
    fn a_bucket_pays_what_it_has() {
        let mut bucket = 4;
        assert_eq!(pay(7, &mut bucket), 3);
        assert_eq!(bucket, 0);
    }
}
