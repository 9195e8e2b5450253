//! What a handler fails with, as it was returned: errors, what gives one out by reference (`anyhow::Error`, [`BoxError`]), text.
//! Nothing is boxed as an error before it was looked at: a box would hide what is inside an `anyhow::Error`.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::marker::PhantomData;

use super::BoxError;

/// What handlers may fail with: any [`Error`](StdError), `anyhow::Error` and what else hands its error out
/// ([`AsRef`], [`BoxError`] too), and text. `Kind` is found by the compiler.
#[diagnostic::on_unimplemented(
    message = "a handler cannot fail with `{Self}`",
    note = "it may fail with an `Error + Send + Sync + 'static`, an `anyhow::Error`, a `BoxError`, or text"
)]
pub trait HandlerError<Kind>: Send + 'static {
    /// What it is, to be looked at.
    #[doc(hidden)]
    fn into_failure(self) -> Failure;
}

/// A [`HandlerError`] that is an error.
#[derive(Debug)]
pub struct IsError;
/// A [`HandlerError`] that gives an error out.
#[derive(Debug)]
pub struct HasError;
/// A [`HandlerError`] that says why.
#[derive(Debug)]
pub struct IsText;

/// An error as the handler returned it.
#[doc(hidden)]
pub struct Failure(Box<dyn Seen>);

impl Failure {
    /// The error, with its sources.
    pub(super) fn error(&self) -> &(dyn StdError + 'static) {
        self.0.error()
    }

    /// The handler's own type.
    pub(super) fn own(&self) -> &dyn Any {
        self.0.own()
    }

    pub(super) fn of(error: impl StdError + Send + Sync + 'static) -> Self {
        error.into_failure()
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({:?})", self.error())
    }
}

trait Seen: Send {
    fn error(&self) -> &(dyn StdError + 'static);
    fn own(&self) -> &dyn Any;
}

struct Kept<E, Kind>(E, PhantomData<fn() -> Kind>);

fn keep<E, Kind>(error: E) -> Failure
where
    Kept<E, Kind>: Seen + 'static,
{
    Failure(Box::new(Kept(error, PhantomData)))
}

impl<E: StdError + Send + Sync + 'static> HandlerError<IsError> for E {
    fn into_failure(self) -> Failure {
        keep::<E, IsError>(self)
    }
}

impl<E: StdError + Send + Sync + 'static> Seen for Kept<E, IsError> {
    fn error(&self) -> &(dyn StdError + 'static) {
        &self.0
    }
    fn own(&self) -> &dyn Any {
        &self.0
    }
}

impl<E: AsRef<dyn StdError + Send + Sync> + Send + 'static> HandlerError<HasError> for E {
    fn into_failure(self) -> Failure {
        keep::<E, HasError>(self)
    }
}

impl<E: AsRef<dyn StdError + Send + Sync> + Send + 'static> Seen for Kept<E, HasError> {
    fn error(&self) -> &(dyn StdError + 'static) {
        self.0.as_ref()
    }
    fn own(&self) -> &dyn Any {
        &self.0
    }
}

/// Text, with the error that it makes.
struct Said<T>(T, BoxError);

impl<T: Send + 'static> Seen for Kept<Said<T>, IsText> {
    fn error(&self) -> &(dyn StdError + 'static) {
        &*self.0.1
    }
    fn own(&self) -> &dyn Any {
        &self.0.0
    }
}

macro_rules! text {
    ($($type:ty)*) => {
        $(impl HandlerError<IsText> for $type {
            fn into_failure(self) -> Failure {
                let error = BoxError::from(self.clone());
                keep::<Said<Self>, IsText>(Said(self, error))
            }
        })*
    };
}

text!(&'static str String Cow<'static, str>);
