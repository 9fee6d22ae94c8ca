//! Replaces `verbs` in a build without that feature: verbs create no object, and their methods
//! answer as on a kernel without them.

use super::write::Command;

pub(super) static COMMANDS: &[Command] = &[];

pub(super) mod objects {
    use nix::errno::Errno;
    use verbless_prm::Opcode;

    use super::super::client::Client;
    use super::super::kernel::Kernel;
    use super::listener::EndingListener;

    /// An object of verbs, which cannot exist here.
    #[derive(Debug)]
    pub(crate) enum Verbs {}

    impl Verbs {
        pub(crate) fn is_queue_pair(&self) -> bool {
            match *self {}
        }

        pub(crate) fn kind(&self) -> u16 {
            match *self {}
        }

        pub(crate) fn queue(&self) -> Option<(Opcode, u32)> {
            match *self {}
        }

        pub(crate) fn destroy(
            &self,
            _: &Kernel,
            _: Option<&dyn Client>,
        ) -> Result<Option<EndingListener>, Errno> {
            match *self {}
        }
    }
}

pub(super) mod listener {
    use verbless_prm::Eqe;

    use super::super::client::Client;
    use super::super::uapi::ReportedEvents;

    /// A receiver of events, which cannot exist here.
    pub(crate) enum EndingListener {}

    impl EndingListener {
        pub(crate) fn finish(self, _: &dyn Client) -> ReportedEvents {
            match self {}
        }
    }

    /// The receivers of verbs' events: none.
    #[derive(Debug, Default)]
    pub(crate) struct Listeners(());

    impl Listeners {
        pub(crate) fn completed(&self, _: u32) {}

        pub(crate) fn happened(&self, _: &Eqe) {}
    }
}
