//! Tests of the modelled kernel, in one program: linking a program per file takes longer than
//! running it.

mod faults;
mod front_end;
mod network;
mod reset;
mod sides;
mod turns;
