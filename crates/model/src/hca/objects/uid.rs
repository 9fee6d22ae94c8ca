//! Owners of objects.

/// The owner of an object: 0 is the kernel, others are user contexts (CREATE_UCTX).
pub(crate) type Uid = u16;

/// `MLX5_SHARED_RESOURCE_UID`: a driver creates EQs with this uid, so that CQs of every uid may use
/// them.
pub(crate) const SHARED_UID: Uid = 0xffff;
