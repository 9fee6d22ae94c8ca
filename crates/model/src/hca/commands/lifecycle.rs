//! A function's life: ENABLE_HCA, INIT_HCA, TEARDOWN_HCA.

use verbless_prm::{
    DisableHcaIn, DisableHcaOut, EnableHcaIn, EnableHcaOut, InitHcaIn, InitHcaOut, QueryIssiIn,
    QueryIssiOut, SetIssiIn, SetIssiOut, TeardownHcaIn, TeardownHcaOut, TeardownProfile,
};

use super::call::{Call, Outcome, own_side};
use super::{mkey, pages, uctx};
use crate::hca::refusal::Refusal;
use crate::hca::state::{Hca, Life};
use crate::profile::Side;

/// ENABLE_HCA.
pub(super) fn enable(call: &mut Call<'_>, input: &EnableHcaIn, _: &mut EnableHcaOut) -> Outcome {
    let (embedded_cpu, id) = (input.embedded_cpu_function(), input.function_id());
    if names_host_function(call.hca(), embedded_cpu, id) {
        return Ok(());
    }
    own_side(call.hca(), embedded_cpu, id)?;
    if call.hca().life != Life::Disabled {
        return Err(Refusal::AlreadyEnabled);
    }
    call.hca_mut().life = Life::Enabled;
    Ok(())
}

/// DISABLE_HCA. Forgets pages that the driver did not take back.
pub(super) fn disable(call: &mut Call<'_>, input: &DisableHcaIn, _: &mut DisableHcaOut) -> Outcome {
    let (embedded_cpu, id) = (input.embedded_cpu_function(), input.function_id());
    if names_host_function(call.hca(), embedded_cpu, id) {
        return Ok(());
    }
    own_side(call.hca(), embedded_cpu, id)?;
    if call.hca().life == Life::Up {
        return Err(Refusal::AlreadyInitialised);
    }
    drop_eqs(call.hca_mut());
    call.hca_mut().restore_defaults();
    Ok(())
}

/// Whether a command of the embedded CPU names the host's function, while its own is up. Linux also
/// enables and disables the host's function when it probes an ECPF that does not manage the
/// embedded switch, and the probe fails if the device refuses (ecpf.c). In the separated host mode
/// neither function depends on the other, and the host's function enables itself.
fn names_host_function(hca: &Hca, embedded_cpu: bool, id: u16) -> bool {
    hca.profile.side() == Side::Dpu && hca.life == Life::Up && !embedded_cpu && id == 0
}

/// INIT_HCA.
pub(super) fn init(call: &mut Call<'_>, _: &InitHcaIn, _: &mut InitHcaOut) -> Outcome {
    if call.hca().life == Life::Up {
        return Err(Refusal::AlreadyInitialised);
    }
    if call.hca().pages.given.len() < pages::startup_pages(call.hca(), true) {
        return Err(Refusal::PagesLacking);
    }
    drop_eqs(call.hca_mut());
    call.hca_mut().closed = false;
    call.hca_mut().life = Life::Up;
    mkey::add_null(call.hca_mut());
    Ok(())
}

/// TEARDOWN_HCA.
pub(super) fn teardown(
    call: &mut Call<'_>,
    input: &TeardownHcaIn,
    output: &mut TeardownHcaOut,
) -> Outcome {
    if call.hca().life != Life::Up {
        return Err(Refusal::NotInitialised);
    }
    let general = call.hca().caps.general();
    match input.profile() {
        TeardownProfile::GRACEFUL_CLOSE if call.hca().objects.counts() != Default::default() => {
            return Err(Refusal::ObjectsExist);
        }
        TeardownProfile::GRACEFUL_CLOSE => {}
        TeardownProfile::FORCE_CLOSE if general.force_teardown() => {}
        TeardownProfile::PREPARE_FAST_TEARDOWN if general.fast_teardown() => {}
        _ => return Err(Refusal::BadProfile),
    }
    output.set_state(false);
    // A driver polls for the completion of a graceful teardown, since it has destroyed its EQs. For
    // any other teardown it waits on its EQ (Linux `mlx5_try_fast_unload`), so EQs remain.
    let hca = call.hca_mut();
    let eqs = std::mem::take(&mut hca.objects.eqs);
    uctx::destroy_all(hca);
    hca.objects.eqs = eqs;
    hca.closed = input.profile() != TeardownProfile::GRACEFUL_CLOSE;
    hca.life = Life::Enabled;
    Ok(())
}

/// Destroys the EQs that a forced or fast teardown left.
fn drop_eqs(hca: &mut Hca) {
    if hca.objects.counts() != Default::default() {
        uctx::destroy_all(hca);
    }
}

/// QUERY_ISSI.
pub(super) fn query_issi(
    call: &mut Call<'_>,
    _: &QueryIssiIn,
    output: &mut QueryIssiOut,
) -> Outcome {
    output.set_current_issi(call.hca().issi);
    output.set_supported_issi_dw0(call.hca().profile.device().issi);
    Ok(())
}

/// SET_ISSI.
pub(super) fn set_issi(call: &mut Call<'_>, input: &SetIssiIn, _: &mut SetIssiOut) -> Outcome {
    let issi = input.current_issi();
    if issi >= 32 || call.hca().profile.device().issi >> issi & 1 == 0 {
        return Err(Refusal::NoSuchIssi);
    }
    call.hca_mut().issi = issi;
    Ok(())
}
