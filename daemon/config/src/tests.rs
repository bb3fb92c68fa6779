//! The configuration as a whole: what is said about bad files, and what the example promises.

mod effective;
mod example;
mod problems;
mod properties;
mod reading;
mod registry;
mod restart;
