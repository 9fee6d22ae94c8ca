//! Makes the DevX calls of libmlx5, one after the other, to record their ioctls.
//!
//! The same calls are made on our driver in `crates/devx/tests/cases/guest.rs`, where a scripted
//! device gives the kernel's answers from here.

use verbless_prm as prm;
use verbless_prm::{
    CqeSize, CreateCqIn, CreateMkeyIn, CreateQpIn, MkeyAccessMode, PathMigrationState, QueryQpIn,
    Rst2initQpIn, ServiceType,
};

use crate::memory::Pages;
use crate::result::Result;
use crate::verbs::Verbs;

const PAGE: usize = 4096;
const LOCAL_WRITE: u32 = 1;
const ALL: u32 = 7;

/// Makes every call; passes its title to `title` first.
///
/// # Errors
/// If a call fails.
pub fn run(verbs: &Verbs, title: &dyn Fn(&str)) -> Result {
    title("mlx5dv_open_device");
    let context = verbs.open()?;
    title("ibv_query_port");
    context.query_port(1)?;
    title("ibv_query_gid_table");
    context.gid_table(8)?;
    title("ibv_query_gid_ex");
    context.gid_entry(1, 0)?;
    title("ibv_alloc_pd");
    let verbs_pd = context.pd()?;

    let mut out = [0; 16];
    title("mlx5dv_devx_general_cmd QUERY_HCA_CAP");
    let mut query = prm::QueryHcaCapIn::new();
    query.set_op_mod(1);
    context.general_command(query.as_bytes(), &mut vec![0; 16 + 4096])?;
    title("mlx5dv_devx_query_eqn");
    let eqn = context.eqn(0)?;
    title("mlx5dv_devx_alloc_uar BF");
    let (blue_flame, page) = context.uar(0)?;
    title("mlx5dv_devx_alloc_uar NC");
    let (non_cached, _) = context.uar(1)?;
    title("mlx5dv_devx_umem_reg");
    let ring = Pages::new(2 * PAGE)?;
    let (ring_umem, ring_id) = context.umem(&ring, LOCAL_WRITE, None)?;
    title("mlx5dv_devx_umem_reg_ex");
    let memory = Pages::new(4 * PAGE)?;
    let (umem, id) = context.umem(&memory, ALL, Some(PAGE as u64))?;

    title("mlx5dv_devx_obj_create ALLOC_PD");
    let pd = context.object(prm::AllocPdIn::new().as_bytes(), &mut out)?;
    let pdn = number(&out);
    title("mlx5dv_devx_obj_create CREATE_CQ");
    let mut create = CreateCqIn::new();
    create.set_cq_umem_id(ring_id).set_cq_umem_valid(true);
    create
        .cq_context_mut()
        .set_cqe_sz(CqeSize::BYTES_64)
        .set_log_cq_size(6)
        .set_uar_page(page)
        .set_c_eqn_or_apu_element(eqn)
        .set_dbr_umem_id(id)
        .set_dbr_umem_valid(true);
    let cq = context.object(create.as_bytes(), &mut out)?;
    let cqn = number(&out);
    title("mlx5dv_devx_obj_create CREATE_QP");
    let mut create = CreateQpIn::new();
    create.set_wq_umem_id(id).set_wq_umem_offset(PAGE as u64).set_wq_umem_valid(true);
    create
        .qpc_mut()
        .set_st(ServiceType::RC)
        .set_pm_state(PathMigrationState::MIGRATED)
        .set_pd(pdn)
        .set_uar_page(page)
        .set_cqn_snd(cqn)
        .set_cqn_rcv(cqn)
        .set_log_sq_size(4)
        .set_log_rq_size(4)
        .set_dbr_umem_id(id)
        .set_dbr_umem_valid(true)
        .set_dbr_addr(64);
    let qp = context.object(create.as_bytes(), &mut out)?;
    let qpn = number(&out);
    title("mlx5dv_devx_obj_create CREATE_MKEY");
    let mut create = CreateMkeyIn::new();
    create
        .set_translations_octword_actual_size(1)
        .set_mkey_umem_id(id)
        .set_mkey_umem_offset(2 * PAGE as u64)
        .set_mkey_umem_valid(true);
    create
        .memory_key_mkey_entry_mut()
        .set_access_mode_1_0(MkeyAccessMode::MTT.0)
        .set_lr(true)
        .set_lw(true)
        .set_qpn(0xff_ffff)
        .set_mkey_7_0(0x2a)
        .set_pd(pdn)
        .set_len(2 * PAGE as u64)
        .set_log_page_size(12)
        .set_translations_octword_size(1);
    let mkey = context.object(create.as_bytes(), &mut out)?;

    let mut query = QueryQpIn::new();
    query.set_qpn(qpn);
    title("mlx5dv_devx_obj_query QUERY_QP");
    qp.query(query.as_bytes(), &mut [0; prm::QueryQpOut::BYTES])?;
    title("mlx5dv_devx_obj_modify RST2INIT_QP");
    let mut modify = Rst2initQpIn::new();
    modify.set_qpn(qpn);
    modify.qpc_mut().set_st(ServiceType::RC).set_pm_state(PathMigrationState::MIGRATED);
    modify.qpc_mut().primary_address_path_mut().set_vhca_port_num(1);
    qp.modify(modify.as_bytes(), &mut out)?;

    title("mlx5dv_devx_create_cmd_comp");
    let answers = context.answers()?;
    title("mlx5dv_devx_obj_query_async QUERY_QP");
    qp.query_later(query.as_bytes(), prm::QueryQpOut::BYTES, 0x1122_3344_5566_7788, &answers)?;
    title("mlx5dv_devx_create_event_channel");
    let events = context.events(false)?;
    title("mlx5dv_devx_create_event_channel omitting data");
    let completions = context.events(true)?;
    title("mlx5dv_devx_subscribe_devx_event of a CQ");
    completions.subscribe(Some(&cq), &[0], 0x00c0_0c1e)?;
    title("mlx5dv_devx_subscribe_devx_event of a QP");
    events.subscribe(Some(&qp), &[0x13], 0x00c0_0c1f)?;
    title("mlx5dv_devx_subscribe_devx_event of a port");
    events.subscribe(None, &[9], 5)?;

    title("mlx5dv_devx_obj_destroy MKEY");
    drop(mkey);
    title("mlx5dv_devx_obj_destroy QP");
    drop(qp);
    title("mlx5dv_devx_obj_destroy CQ");
    drop(cq);
    title("mlx5dv_devx_obj_destroy PD");
    drop(pd);
    title("mlx5dv_devx_umem_dereg");
    drop(umem);
    title("mlx5dv_devx_umem_dereg of the ring");
    drop(ring_umem);
    title("mlx5dv_devx_free_uar NC");
    drop(non_cached);
    title("mlx5dv_devx_free_uar BF");
    drop(blue_flame);
    title("ibv_dealloc_pd");
    drop(verbs_pd);
    title("the rest");
    Ok(())
}

/// The number of a new object: at the same offset for all of these.
fn number(output: &[u8; 16]) -> u32 {
    u32::from_be_bytes([0, output[9], output[10], output[11]])
}
