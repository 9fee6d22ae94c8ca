//! Tests of the modelled kernel, in one program: to link one for each file takes longer than to run
//! it.

mod faults;
mod front_end;
mod network;
mod sides;
mod turns;
