//! The engine on objects that the tests build themselves.

mod arrivals;
mod blueflame;
mod completions;
mod copies;
mod datagrams;
mod disagreement;
mod doorbells;
mod dpa;
mod foreign;
mod gone;
mod hostile;
mod links;
mod lossy;
mod messages;
mod operations;
mod parts;
mod protection;
mod resize;
mod retries;
mod rig;
mod sqs;
mod srqs;
mod threads;
mod umr;
mod waits;
mod ways;
