//! The arithmetic of the order: weights, shares, tags. Pure functions of numbers.
//!
//! Start-time fair queueing: P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queueing: A Scheduling Algorithm for
//! Integrated Services Packet Switching Networks", SIGCOMM 1996, section 2 (eq. 4 and 5), with the arrival rule of
//! `vtrr-queue` 0.1.0. The rules R1, R2 … are those of `docs/protocol.md`. The scripts compute the same expressions
//! in the same order, so both get the same doubles.

use std::cmp::Ordering;

use crate::error::{Error, Result};

/// A virtual time that can be a key of an ordered set, like a score in a sorted set. Never NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tag(pub(crate) f64);

impl Eq for Tag {}

impl Ord for Tag {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Tag {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// How much of its partition's time one task uses up: an integer from 1 to 1,000,000; 1 unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    /// The largest weight.
    pub const MAX: u32 = 1_000_000;

    /// Checks the range: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) outside 1 to 1,000,000.
    pub fn new(weight: i64) -> Result<Self> {
        match u32::try_from(weight) {
            Ok(n @ 1..=Self::MAX) => Ok(Self(n)),
            _ => Err(Error::invalid("weight", weight, "an integer from 1 to 1000000")),
        }
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(1)
    }
}

/// What a partition is entitled to, relative to others: from 0.001 to 1,000; 1 unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Share(f64);

impl Share {
    /// Checks the range: [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) outside 0.001 to 1,000, or for NaN.
    pub fn new(share: f64) -> Result<Self> {
        if (0.001..=1_000.0).contains(&share) {
            Ok(Self(share))
        } else {
            Err(Error::invalid("share", share, "a number from 0.001 to 1000"))
        }
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for Share {
    fn default() -> Self {
        Self(1.0)
    }
}

/// R1, arrival: F = max(F, V + 1/share). O(1), like everything here.
pub fn arrival(finish: Option<f64>, virtual_time: f64, share: Share) -> f64 {
    let entry = virtual_time + 1.0 / share.0;
    finish.map_or(entry, |f| f.max(entry))
}

/// R2: S = max(F, V).
pub fn start_tag(finish: Option<f64>, virtual_time: f64) -> f64 {
    finish.map_or(virtual_time, |f| f.max(virtual_time))
}

/// R3: F = S + weight/share, and always above S.
pub fn finish_tag(start: f64, weight: Weight, share: Share) -> f64 {
    let finish = start + f64::from(weight.0) / share.0;
    // One step of a double up: 2^-52 of S is at least one and less than two units in its last place.
    if finish > start { finish } else { start * (1.0 + f64::EPSILON) }
}

/// R10: the distance to V, in the old share's time, told in the new share's time.
pub fn reshare(x: f64, virtual_time: f64, old: Share, new: Share) -> f64 {
    // Rounding would move it by a hair when the same share is set again.
    if old == new { x } else { virtual_time + (x - virtual_time) * old.0 / new.0 }
}

/// R6: whether an idle partition's F can be forgotten because R1 would answer the same without it.
pub fn is_forgettable(finish: f64, virtual_time: f64, share: Share) -> bool {
    finish <= virtual_time + 1.0 / share.0
}

/// R6: where an idle partition stands in the index of candidates.
pub(crate) fn idle_score(finish: f64, share: Share) -> f64 {
    finish - 1.0 / share.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_always_grow_even_where_a_double_cannot_hold_the_step() {
        for start in [1.0, 3.0, 1e15, 9_007_199_254_740_993.0, 1e18, 1.5e300] {
            let finish = finish_tag(start, Weight(1), Share(1_000.0));
            assert!(finish > start, "{start}");
        }
    }

    #[test]
    fn the_same_share_set_again_moves_nothing() {
        let numbers = (1..1_000).map(|n| f64::from(n) / 7.0);
        assert!(numbers.clone().all(|x| reshare(x, x / 3.0, Share(0.3), Share(0.3)) == x));
        assert!(numbers.into_iter().any(|x| x / 3.0 + (x - x / 3.0) * 0.3 / 0.3 != x), "then this rule is not needed");
    }

    #[test]
    fn weights_and_shares_out_of_range_are_refused_by_name_and_value() {
        for weight in [0, -1, 1_000_001, 1 << 53, i64::MIN, i64::MAX] {
            let error = Weight::new(weight).unwrap_err().to_string();
            assert!(error.contains("weight") && error.contains(&weight.to_string()), "{error}");
        }
        for share in [0.0, -1.0, f64::NAN, f64::INFINITY, 0.000_99, 1_000.1] {
            let error = Share::new(share).unwrap_err().to_string();
            assert!(error.contains("share") && error.contains("0.001 to 1000"), "{error}");
        }
    }
}
