//! Arguments into a handler's type. The type says what it wants; nothing is tried and guessed but for one case.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::value::RawValue;
use serde_json::{Error, Result};
use std::collections::BTreeMap;

/// Positional and named arguments, as stored.
#[derive(Debug, Clone)]
pub(super) struct Arguments<'de> {
    args: Vec<&'de RawValue>,
    /// None if there are no named ones.
    kwargs: Option<&'de RawValue>,
}

impl<'de> Arguments<'de> {
    /// Takes the fields `args` and `kwargs` of a body; missing and `null` mean none.
    pub(super) fn read(args: Option<&'de RawValue>, kwargs: Option<&'de RawValue>) -> Result<Self> {
        let args = match args {
            Some(list) => serde_json::from_str(list.get()).map_err(|_| Error::custom("args is not a list"))?,
            None => Vec::new(),
        };
        let inside = |object: &'de RawValue| object.get().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let kwargs = match kwargs.map(|object| (object, inside(object))) {
            Some((_, None)) => return Err(Error::custom("kwargs is not an object")),
            Some((object, Some(inside))) if !inside.trim().is_empty() => Some(object),
            _ => None,
        };
        Ok(Self { args, kwargs })
    }

    /// Into a handler's type. One positional argument is also taken for the whole, where it does not fit otherwise.
    pub(super) fn decode<A: DeserializeOwned>(&self) -> Result<A> {
        let error = match A::deserialize(self.clone()) {
            Ok(arguments) => return Ok(arguments),
            Err(error) => error,
        };
        match (self.args.as_slice(), self.kwargs) {
            ([one], None) => serde_json::from_str(one.get()).map_err(|_| error),
            _ => Err(error),
        }
    }

    /// The one positional argument, for types that are neither list nor object.
    fn one(self) -> Result<&'de RawValue> {
        match (self.args.as_slice(), self.kwargs) {
            ([one], None) => Ok(one),
            _ => Err(self.mismatch("one positional argument")),
        }
    }

    fn mismatch(&self, wanted: &str) -> Error {
        let named = if self.kwargs.is_some() { " and named ones" } else { "" };
        Error::custom(format_args!("the handler takes {wanted}, not {} positional{named}", self.args.len()))
    }

    fn is_empty(&self) -> bool {
        self.args.is_empty() && self.kwargs.is_none()
    }
}

/// `{}`.
fn nothing<'a>() -> Result<&'a RawValue> {
    serde_json::from_str("{}")
}

/// Types that one argument makes.
macro_rules! one {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
            self.one()?.$method(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for Arguments<'de> {
    type Error = Error;

    one! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128 deserialize_u8
        deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char
        deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf
    }

    /// A JSON value: the list, or the object if there are named arguments only.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.kwargs.is_some() && self.args.is_empty() {
            self.deserialize_map(visitor)
        } else {
            self.deserialize_seq(visitor)
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.is_empty() { visitor.visit_unit() } else { Err(self.mismatch("no arguments")) }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.is_empty() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.kwargs.is_some() {
            return Err(self.mismatch("positional arguments only"));
        }
        visitor.visit_seq(SeqDeserializer::new(self.args.into_iter()))
    }

    /// The positional arguments; the named ones are the last element, which may be missing if there are none.
    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value> {
        let named = match self.kwargs {
            None if self.args.len() + 1 == len => Some(nothing()?),
            kwargs => kwargs,
        };
        let mut list = SeqDeserializer::new(self.args.into_iter().chain(named));
        let value = visitor.visit_seq(&mut list)?;
        list.end()?;
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(self, _name: &'static str, len: usize, visitor: V) -> Result<V::Value> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if !self.args.is_empty() {
            return Err(self.mismatch("named arguments only"));
        }
        self.kwargs.map_or_else(nothing, Ok)?.deserialize_map(visitor)
    }

    /// As Python binds a call: positional arguments by the order of the fields, named ones by name.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let kwargs = self.kwargs.map_or_else(nothing, Ok)?;
        if self.args.is_empty() {
            return kwargs.deserialize_struct(name, fields, visitor);
        }
        if self.args.len() > fields.len() {
            return Err(self.mismatch(&format!("up to {} arguments", fields.len())));
        }
        let named: BTreeMap<String, &'de RawValue> = serde_json::from_str(kwargs.get())?;
        let positional = fields.iter().map(|field| (*field).to_owned()).zip(self.args);
        let mut object = MapDeserializer::new(positional.chain(named));
        let value = visitor.visit_map(&mut object)?;
        object.end()?;
        Ok(value)
    }

    /// A variant without data is one argument; one with data is an object, thus named.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        let value = match self.kwargs {
            Some(kwargs) if self.args.is_empty() => kwargs,
            _ => self.one()?,
        };
        value.into_deserializer().deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! { identifier ignored_any }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;
    use crate::task::{Body, Payload};
    use crate::worker::stored::Stored;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Resize {
        path: String,
        width: u32,
        #[serde(default)]
        force: bool,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Shape {
        Point,
        Circle { radius: u8 },
    }

    fn decode<A: DeserializeOwned>(args: &str, kwargs: &str) -> Result<A> {
        Arguments::read(Some(serde_json::from_str(args)?), Some(serde_json::from_str(kwargs)?))?.decode()
    }

    fn round<A: Serialize + DeserializeOwned>(arguments: &A) -> A {
        let body = Body::call("t", arguments).unwrap();
        let payload = Payload([b"{", body.rest()].concat());
        let stored = Stored::read(&payload).unwrap();
        Arguments::read(stored.args, stored.kwargs).unwrap().decode().unwrap()
    }

    #[test]
    fn what_a_producer_gives_is_what_a_handler_gets() {
        assert_eq!(round(&()), ());
        assert_eq!(round(&5), 5);
        assert_eq!(round(&"a".to_owned()), "a");
        assert_eq!(round(&("a".to_owned(), 5, [1, 2])), ("a".to_owned(), 5, [1, 2]));
        assert_eq!(round(&(vec![1, 2],)), (vec![1, 2],));
        assert_eq!(round(&vec![1, 2, 3]), [1, 2, 3]);
        assert_eq!(round(&vec![vec![1, 2]]), [[1, 2]]);
        assert_eq!(round(&None::<u8>), None);
        assert_eq!(round(&Some(1.5)), Some(1.5));
        let resize = || Resize { path: "a".into(), width: 5, force: true };
        assert_eq!(round(&resize()), resize());
        assert_eq!(round(&(1, resize())), (1, resize()));
        assert_eq!((round(&Shape::Point), round(&Shape::Circle { radius: 3 })), (Shape::Point, Shape::Circle { radius: 3 }));
    }

    #[test]
    fn a_float_is_the_same_to_the_last_bit() {
        let mut bits = 88_172_645_463_325_252_u64;
        for _ in 0..10_000 {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let ordinary = bits as f64 / 1e16;
            for float in [ordinary, f64::from_bits(bits)].into_iter().filter(|float| float.is_finite()) {
                assert_eq!(round(&float).to_bits(), float.to_bits(), "{float}");
            }
        }
    }

    #[test]
    fn a_struct_takes_arguments_as_python_binds_them() {
        let expected = Resize { path: "a".into(), width: 5, force: true };
        assert_eq!(decode::<Resize>(r#"["a"]"#, r#"{"force":true,"width":5}"#).unwrap(), expected);
        assert_eq!(decode::<Resize>(r#"["a",5,true]"#, "{}").unwrap(), expected);
        assert_eq!(decode::<Resize>(r#"[{"path":"a","width":5,"force":true}]"#, "{ }").unwrap(), expected);
        for (args, kwargs, words) in [
            (r#"["a",5]"#, r#"{"width":6}"#, "duplicate field `width`"),
            (r#"["a",5,true,1]"#, "{}", "up to 3 arguments, not 4"),
            (r#"["a"]"#, "{}", "missing field `width`"),
        ] {
            let error = decode::<Resize>(args, kwargs).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn one_argument_is_also_the_whole() {
        assert_eq!(decode::<Vec<u8>>("[[1,2]]", "{}").unwrap(), [1, 2]);
        assert_eq!(decode::<Option<u8>>("[null]", "{}").unwrap(), None);
        assert_eq!(decode::<BTreeMap<String, u8>>(r#"[{"a":1}]"#, "{}").unwrap(), [("a".to_owned(), 1)].into());
        assert_eq!(decode::<(u8, BTreeMap<String, u8>)>("[1]", r#"{"a":1}"#).unwrap().1.len(), 1);
        assert_eq!(decode::<(u8, BTreeMap<String, u8>)>("[1]", "{}").unwrap().1.len(), 0);
        assert_eq!(decode::<serde_json::Value>("[1]", "{}").unwrap(), json!([1]));
        assert_eq!(decode::<serde_json::Value>("[]", r#"{"a":1}"#).unwrap(), json!({"a": 1}));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        for (error, words) in [
            (decode::<String>("[]", "{}").map(drop), "one positional argument, not 0 positional"),
            (decode::<String>("[1]", "{}").map(drop), "expected a string"),
            (decode::<()>("[1]", "{}").map(drop), "no arguments, not 1 positional"),
            (decode::<(u8, u8)>("[1,2,3]", "{}").map(drop), "invalid length 3"),
            (decode::<Vec<u8>>("[1]", r#"{"a":1}"#).map(drop), "positional arguments only, not 1 positional and named ones"),
            (decode::<u8>("{}", "{}").map(drop), "args is not a list"),
            (decode::<u8>("[1]", "[]").map(drop), "kwargs is not an object"),
        ] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
