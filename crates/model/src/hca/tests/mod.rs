//! Commands, legal and illegal: each refusal by its status and the model's own syndrome.

mod doorbells;
mod dumps;
mod emulated;
mod ethernet;
mod features;
mod foreign;
mod kernel;
mod keys;
mod life;
mod limits;
mod many;
mod multicast;
mod ownership;
mod ports;
mod qps;
mod queues;
mod random;
mod registry;
mod rig;
mod services;
mod sqs;
mod tools;
mod transitions;
