//! A sorted set as Redis has it: members by score, equal scores by the member's bytes.

use std::collections::{BTreeSet, HashMap};

use crate::tag::Tag;

/// A score that is a time, in ms since 1970: never negative, far below 2^53.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
pub(crate) fn as_ms(score: f64) -> u64 {
    score as u64
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Scored {
    ordered: BTreeSet<(Tag, String)>,
    scores: HashMap<String, f64>,
}

impl Scored {
    pub(crate) fn insert(&mut self, member: &str, score: f64) {
        self.remove(member);
        self.ordered.insert((Tag(score), member.to_owned()));
        self.scores.insert(member.to_owned(), score);
    }
    pub(crate) fn remove(&mut self, member: &str) -> Option<f64> {
        let score = self.scores.remove(member)?;
        self.ordered.remove(&(Tag(score), member.to_owned()));
        Some(score)
    }
    pub(crate) fn score(&self, member: &str) -> Option<f64> {
        self.scores.get(member).copied()
    }
    pub(crate) fn contains(&self, member: &str) -> bool {
        self.scores.contains_key(member)
    }
    pub(crate) fn first(&self) -> Option<(f64, &str)> {
        self.ordered.first().map(|(tag, member)| (tag.0, member.as_str()))
    }
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (f64, &str)> {
        self.ordered.iter().map(|(tag, member)| (tag.0, member.as_str()))
    }
    /// Members with a score up to `max`, smallest first.
    pub(crate) fn up_to(&self, max: f64) -> impl Iterator<Item = (f64, &str)> {
        self.iter().take_while(move |(score, _)| *score <= max)
    }
    pub(crate) fn len(&self) -> usize {
        self.scores.len()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }
    pub(crate) fn clear(&mut self) {
        self.ordered.clear();
        self.scores.clear();
    }
}
