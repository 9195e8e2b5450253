//! A look at a value before it is written: whether JSON brings it back as it was. Nothing is written here.

use std::collections::BTreeSet;
use std::fmt::{self, Display};

use serde::ser::{self, Serialize, Serializer};

/// What a value is written as.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    /// `null`.
    Nothing,
    /// A list that stands for one value.
    Bytes,
    Something,
}

/// A value that JSON would change.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) value: String,
    pub(crate) allowed: &'static str,
}

impl Refused {
    fn new(value: impl Display, allowed: &'static str) -> Self {
        Self { value: value.to_string(), allowed }
    }
}

impl Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.value)
    }
}

impl std::error::Error for Refused {}

impl ser::Error for Refused {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(format_args!("something that fails with: {message}"), "serialisable to JSON")
    }
}

type Checked = std::result::Result<Found, Refused>;

/// Looks at a value and writes nothing.
pub(crate) struct Check;

fn float(value: f64) -> Checked {
    if value.is_finite() {
        Ok(Found::Something)
    } else {
        Err(Refused::new(value, "finite in each float: JSON has no others"))
    }
}

/// So much fits into what reads any JSON.
fn integer(value: impl Display + Copy, fits: bool) -> Checked {
    if fits { Ok(Found::Something) } else { Err(Refused::new(value, "of at most 64 bits in each integer")) }
}

/// Types that come back from JSON as they were.
macro_rules! something {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, _: $type) -> Checked {
            Ok(Found::Something)
        })*
    };
}

/// What has parts.
macro_rules! parts {
    ($($method:ident($($type:ty),*)),*) => {
        $(fn $method(self, $(_: $type),*) -> std::result::Result<Parts, Refused> {
            Ok(Parts::default())
        })*
    };
}

impl Serializer for Check {
    type Ok = Found;
    type Error = Refused;
    type SerializeSeq = Parts;
    type SerializeTuple = Parts;
    type SerializeTupleStruct = Parts;
    type SerializeTupleVariant = Parts;
    type SerializeMap = Parts;
    type SerializeStruct = Parts;
    type SerializeStructVariant = Parts;

    something! {
        serialize_bool: bool, serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_u8: u8,
        serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_char: char, serialize_str: &str
    }

    fn serialize_i128(self, value: i128) -> Checked {
        integer(value, i64::try_from(value).is_ok() || u64::try_from(value).is_ok())
    }

    fn serialize_u128(self, value: u128) -> Checked {
        integer(value, u64::try_from(value).is_ok())
    }

    fn serialize_f32(self, value: f32) -> Checked {
        float(value.into())
    }

    fn serialize_f64(self, value: f64) -> Checked {
        float(value)
    }

    fn serialize_bytes(self, _: &[u8]) -> Checked {
        Ok(Found::Bytes)
    }

    fn serialize_none(self) -> Checked {
        Ok(Found::Nothing)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Checked {
        match value.serialize(Self)? {
            Found::Nothing => {
                Err(Refused::new("a `Some` of nothing, which is `None` there", "the same when read from JSON"))
            }
            found => Ok(found),
        }
    }

    fn serialize_unit(self) -> Checked {
        Ok(Found::Nothing)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Checked {
        Ok(Found::Nothing)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, _: &'static str) -> Checked {
        Ok(Found::Something)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Checked {
        value.serialize(Self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Checked {
        value.serialize(Self).map(|_| Found::Something)
    }

    fn collect_str<T: Display + ?Sized>(self, _: &T) -> Checked {
        Ok(Found::Something)
    }

    parts! {
        serialize_seq(Option<usize>),
        serialize_tuple(usize),
        serialize_tuple_struct(&'static str, usize),
        serialize_tuple_variant(&'static str, u32, &'static str, usize),
        serialize_map(Option<usize>),
        serialize_struct(&'static str, usize),
        serialize_struct_variant(&'static str, u32, &'static str, usize)
    }
}

/// The parts of a value, and the keys of a map: with `flatten` two fields may have one name.
#[derive(Default)]
pub(crate) struct Parts(BTreeSet<String>);

macro_rules! each {
    ($($trait:ident $method:ident($($key:ty)?)),*) => {
        $(impl ser::$trait for Parts {
            type Ok = Found;
            type Error = Refused;

            fn $method<T: Serialize + ?Sized>(&mut self, $(_: $key,)? value: &T) -> std::result::Result<(), Refused> {
                value.serialize(Check).map(drop)
            }

            fn end(self) -> Checked {
                Ok(Found::Something)
            }
        })*
    };
}

each! {
    SerializeSeq serialize_element(),
    SerializeTuple serialize_element(),
    SerializeTupleStruct serialize_field(),
    SerializeTupleVariant serialize_field(),
    SerializeStruct serialize_field(&'static str),
    SerializeStructVariant serialize_field(&'static str)
}

impl ser::SerializeMap for Parts {
    type Ok = Found;
    type Error = Refused;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> std::result::Result<(), Refused> {
        let key = serde_json::to_string(key).map_err(ser::Error::custom)?;
        if self.0.contains(&key) {
            return Err(Refused::new(format_args!("two fields {key}"), "without two fields of one name"));
        }
        self.0.insert(key);
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> std::result::Result<(), Refused> {
        value.serialize(Check).map(drop)
    }

    fn end(self) -> Checked {
        Ok(Found::Something)
    }
}
