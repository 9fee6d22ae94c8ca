//! Tests of the modelled kernel in one program: each that is a program of its own is linked by
//! itself, which takes longer than to run it.

mod faults;
mod front_end;
mod network;
mod sides;
mod turns;
