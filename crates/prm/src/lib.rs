//! The mlx5 PRM as typed views.
#![no_std]
#![forbid(unsafe_code)]
pub mod hot;
