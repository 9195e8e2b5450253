//! A producer's value as the arguments of a call. What goes in comes out, or is refused here.

use serde::ser::{self, Serialize};

use crate::error::{Error, Result};
use crate::lossless::{Check, Found, Refused};

/// Positional and named arguments as JSON texts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) args: String,
    pub(crate) kwargs: String,
    pub(crate) shape: Option<Shape>,
}

/// What the value was, where its arguments do not tell. A handler whose type takes anything (`Value`, an untagged enum), and an
/// `Option`, go by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The one positional argument itself, no list of one.
    One,
    /// An empty list.
    List,
    /// An object without fields.
    Object,
}

impl Shape {
    /// The text of the body's field `shape`.
    pub(crate) fn json(self) -> &'static str {
        match self {
            Self::One => r#""one""#,
            Self::List => r#""list""#,
            Self::Object => r#""object""#,
        }
    }

    /// None for what others have put there.
    #[cfg(feature = "worker")]
    pub(crate) fn read(json: &str) -> Option<Self> {
        [Self::One, Self::List, Self::Object].into_iter().find(|shape| shape.json() == json)
    }
}

impl Layout {
    /// As [`Body::call`](crate::Body::call) lays them out; object fields keep their order.
    pub(crate) fn of(arguments: &impl Serialize) -> Result<Self> {
        let refused = |refused: Refused| Error::invalid("arguments", refused.value, refused.allowed);
        let found = arguments.serialize(Check).map_err(refused)?;
        let text = serde_json::to_string(arguments).map_err(|error| refused(ser::Error::custom(error)))?;
        let is_empty = || text.get(1..text.len() - 1).is_none_or(|inside| inside.trim().is_empty());
        let (none, nothing) = ("[]".to_owned(), "{}".to_owned());
        let (args, kwargs, shape) = match text.as_bytes().first() {
            Some(b'[') if found != Found::Bytes => {
                let shape = is_empty().then_some(Shape::List);
                (text, nothing, shape)
            }
            Some(b'{') => {
                let shape = is_empty().then_some(Shape::Object);
                (none, text, shape)
            }
            Some(b'n') => (none, nothing, None),
            _ => (format!("[{text}]"), nothing, Some(Shape::One)),
        };
        Ok(Self { args, kwargs, shape })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;
    use serde_json::json;

    use super::*;

    fn laid_out(arguments: &impl Serialize) -> (String, String, Option<Shape>) {
        let Layout { args, kwargs, shape } = Layout::of(arguments).unwrap();
        (args, kwargs, shape)
    }

    #[test]
    fn lists_are_positional_and_objects_named() {
        let of = |args: &str, kwargs: &str, shape| (args.to_owned(), kwargs.to_owned(), shape);
        assert_eq!(laid_out(&()), of("[]", "{}", None));
        assert_eq!(laid_out(&None::<u8>), of("[]", "{}", None));
        assert_eq!(laid_out(&("a", 1)), of("[\"a\",1]", "{}", None));
        assert_eq!(laid_out(&[1]), of("[1]", "{}", None));
        assert_eq!(laid_out(&1), of("[1]", "{}", Some(Shape::One)));
        assert_eq!(laid_out(&[0_u8; 0]), of("[]", "{}", Some(Shape::List)));
        assert_eq!(laid_out(&json!({})), of("[]", "{}", Some(Shape::Object)));
        assert_eq!(laid_out(&json!({"b": 1, "a": 2})).2, None);
        // To the last digit.
        let raw = serde_json::value::RawValue::from_string("[1.10,123456789012345678901234567890]".to_owned()).unwrap();
        assert_eq!(laid_out(&raw).0, raw.get());
    }

    #[derive(Serialize)]
    struct Flat {
        a: u8,
        #[serde(flatten)]
        rest: BTreeMap<String, f64>,
    }

    #[test]
    fn what_would_come_back_changed_is_refused() {
        let flat = |name: &str, number| Flat { a: 1, rest: [(name.to_owned(), number)].into() };
        assert!(Layout::of(&flat("b", 1.0)).is_ok());
        assert!(Layout::of(&(i64::MIN, u64::MAX, i128::from(u64::MAX))).is_ok());
        for (refused, words) in [
            (Layout::of(&f64::INFINITY), "arguments must be finite in each float: JSON has no others, not inf"),
            (Layout::of(&(1, vec![Some(f32::NAN)])), "not NaN"),
            (Layout::of(&flat("b", f64::NEG_INFINITY)), "not -inf"),
            (Layout::of(&flat("a", 1.0)), "without two fields of one name, not two fields \"a\""),
            (Layout::of(&Some(())), "the same when read from JSON, not a `Some` of nothing"),
            (Layout::of(&[Some(None::<u8>)]), "a `Some` of nothing"),
            (Layout::of(&(u128::from(u64::MAX) + 1)), "of at most 64 bits in each integer, not 18446744073709551616"),
            (Layout::of(&BTreeMap::from([((1, 2), 3)])), "serialisable to JSON, not something that fails with"),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.starts_with("arguments must be ") && error.contains(words), "{error}");
        }
    }
}
