//! `hwtest serve` and `hwtest --connect` on the two ends of a link. A part of the step `run:
//! process` of `cargo xtask test`.

use std::path::{Path, PathBuf};

use crate::run::{Checks, program};
use crate::workspace::Result;

/// Runs the cases of two machines between two runs that share a model, and between a host and its
/// DPU; then a server meets clients that send anything.
pub(crate) fn check(model: &PathBuf, checks: &mut Checks) -> Result<()> {
    let hwtest = program("hwtest")?;
    let name = "hwtest at both ends of a link, each in a run of its own (Ethernet)";
    checks.join(model, name, &two_runs(&hwtest));
    checks.join(model, "hwtest on a host and on its DPU", &host_and_dpu(&hwtest));
    checks.join(model, "hwtest serve meets clients that send anything", &hostile(&hwtest));
    Ok(())
}

/// The server's run has two devices, and the client joins it. The report names both devices.
fn two_runs(hwtest: &Path) -> String {
    let (hwtest, name) = (hwtest.display(), format!("xtask-{}-ends", std::process::id()));
    let folder = crate::run::target();
    let report = folder.join(format!("{name}.json")).display().to_string();
    format!(
        "$MODEL run --name {name} --devices 2 --link ethernet -- \
             '{hwtest}' serve 127.0.0.1:18820 --once --device mlx5_1 & server=$!\n\
         until $MODEL ctl {name} show >/dev/null 2>&1; do\n\
             kill -0 $server || exit 1; sleep 0.1\n\
         done\n\
         said=$($MODEL run --join {name} -- '{hwtest}' --connect 127.0.0.1:18820 --device mlx5_0 \
             --json '{report}' 2>&1); code=$?\n\
         echo \"$said\"; wait $server || code=1\n\
         grep -q 'on the model at both ends: here the model, mlx5_0' <<<\"$said\" || code=1\n\
         grep -q '^41 passed, 0 failed, 8 skipped ' <<<\"$said\" || code=1\n\
         grep -q '\"name\": \"mlx5_0\"' '{report}' && grep -q '\"name\": \"mlx5_1\"' '{report}' \
             && grep -q '\"peer\": {{' '{report}' || code=1\n\
         '{hwtest}' report '{report}' -o /dev/null || code=1\n\
         rm -f '{report}'; exit $code"
    )
}

fn host_and_dpu(hwtest: &Path) -> String {
    let hwtest = hwtest.display();
    format!(
        "said=$($MODEL run --profile bluefield3 --dpu \"'{hwtest}' serve 127.0.0.1:18821 --once\" \
             -- '{hwtest}' --device mlx5_0 --connect 127.0.0.1:18821 --filter dpu:: 2>&1)\n\
         code=$?; echo \"$said\"\n\
         grep -q '^8 passed, 0 failed, 0 skipped ' <<<\"$said\" && exit $code"
    )
}

/// Clients that are no hwtest, one that is silent, then a good one; SIGINT ends the server.
fn hostile(hwtest: &Path) -> String {
    let hwtest = hwtest.display();
    let script = format!(
        "at=/dev/tcp/127.0.0.1/18822; good=\"'{hwtest}' --connect 127.0.0.1:18822 --filter\"\n\
         '{hwtest}' serve 127.0.0.1:18822 >said 2>&1 & server=$!\n\
         until grep -q Serving said; do kill -0 $server || exit 1; sleep 0.1; done\n\
         for it in 'GET / HTTP/1.1' 'vb-peers' ''; do\n\
             exec 3<>$at; printf '%s\\r\\n\\r\\n' \"$it\" >&3; timeout 7 cat <&3 >/dev/null\n\
             exec 3>&-\n\
         done\n\
         exec 3<>$at; sleep 0.2\n\
         eval $good exchange:: >busy 2>&1 && exit 1\n\
         grep -q 'it serves another client' busy || exit 1\n\
         exec 3>&-; sleep 0.5\n\
         eval $good exchange:: || exit 1\n\
         kill -INT $server; wait $server || exit 1\n\
         cat said; grep -q 'Ended by SIGINT' said && grep -q 'it is no hwtest\\|no hwtest:' said"
    );
    let folder = crate::run::target().join(format!("xtask-{}-hostile", std::process::id()));
    let folder = folder.display();
    format!(
        "mkdir -p '{folder}' && cd '{folder}' || exit 1\n\
         $MODEL run -- bash -c {script}; code=$?\n\
         rm -rf '{folder}'; exit $code",
        script = quoted(&script)
    )
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
