//! The commands of the write interface for objects of verbs.

use super::super::abi::object;
use super::super::write::{Command, extended, in_context, plain};

pub(crate) static COMMANDS: &[Command] = &[
    in_context(plain("QUERY_DEVICE", 1, 8, 176, |method, core| method.query_device(core))),
    in_context(extended("QUERY_DEVICE_EX", 1, 8, |method, core| method.query_device_ex(core))),
    plain("REG_MR", 9, 40, 12, |method, core| method.reg_mr(core)),
    plain("REREG_MR", 11, 48, 8, |method, core| method.rereg_mr(core)),
    plain("DEREG_MR", 13, 4, 0, |method, core| method.destroy_by_handle(core.u32(0), object::MR)),
    plain("ALLOC_MW", 14, 16, 8, |method, core| method.alloc_mw(core)),
    plain("DEALLOC_MW", 16, 4, 0, |method, core| method.destroy_by_handle(core.u32(0), object::MW)),
    plain("CREATE_COMP_CHANNEL", 17, 8, 4, |method, core| method.create_comp_channel(core)),
    plain("CREATE_CQ", 18, 32, 8, |method, core| method.write_create_cq(core)),
    plain("RESIZE_CQ", 19, 16, 8, |method, core| method.resize_cq(core)),
    plain("DESTROY_CQ", 20, 16, 8, |method, core| method.write_destroy_cq(core)),
    plain("CREATE_QP", 24, 56, 32, |method, core| method.write_create_qp(core)),
    plain("QUERY_QP", 25, 16, 128, |method, core| method.query_qp(core)),
    plain("MODIFY_QP", 26, 112, 0, |method, core| method.modify_qp(core)),
    extended("MODIFY_QP_EX", 26, 120, |method, core| method.modify_qp_ex(core)),
    extended("MODIFY_CQ_EX", 57, 16, |method, core| method.modify_cq(core)),
    plain("DESTROY_QP", 27, 16, 4, |method, core| method.write_destroy_qp(core)),
    plain("ATTACH_MCAST", 30, 24, 0, |method, core| method.attach_multicast(core)),
    plain("DETACH_MCAST", 31, 24, 0, |method, core| method.detach_multicast(core)),
    plain("CREATE_SRQ", 32, 32, 16, |method, core| method.write_create_srq(core)),
    plain("MODIFY_SRQ", 33, 16, 0, |method, core| method.modify_srq(core)),
    plain("QUERY_SRQ", 34, 16, 16, |method, core| method.query_srq(core)),
    plain("DESTROY_SRQ", 35, 16, 4, |method, core| method.write_destroy_srq(core)),
];
