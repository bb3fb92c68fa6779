//! The configuration as a whole: messages for bad files, and the promises of the example.

mod chart;
mod effective;
mod example;
mod problems;
mod properties;
mod reading;
mod registry;
mod restart;
