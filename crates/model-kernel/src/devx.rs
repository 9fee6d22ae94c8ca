//! DevX methods that pass commands: OTHER, OBJ_CREATE, OBJ_MODIFY, OBJ_QUERY. Also the queries for
//! an EQN and for the number of a UAR page.

use verbless_prm::Opcode;

use nix::errno::Errno;

use super::abi::attr;
use super::context::REGISTERS_PER_UAR;
use super::file::Method;
use super::handles::{DevxObject, Object};
use super::mailbox::{UID, VHCA_TUNNEL_ID};
use super::refused::refused;
use super::rules::{self, ObjectId};

/// The errno for a command that this DevX method does not pass.
fn not_passed(input: &[u8], method: &str) -> Errno {
    let opcode = rules::opcode(input);
    refused(Errno::EINVAL, format!("{opcode:?} is not passed by {method}"))
}

impl Method<'_> {
    /// The uid of a command.
    fn devx_uid(&self, input: &[u8]) -> Result<u16, Errno> {
        let own = self.state.context()?.uid;
        if own != 0 {
            return Ok(own);
        }
        if !rules::is_passed_without_devx(input) {
            let words = "a context without DevX (flag DEVX 0x1) may only query capabilities";
            return Err(refused(Errno::EINVAL, words));
        }
        match self.file.kernel.spare_uid {
            0 => Err(refused(Errno::EOPNOTSUPP, "the device has no uid for contexts without DevX")),
            spare => Ok(spare),
        }
    }

    /// Writes the uid into a command for an object; EINVAL for a command to another vhca.
    fn stamp(&self, input: &mut [u8]) -> Result<(), Errno> {
        if VHCA_TUNNEL_ID.get(input) != 0 {
            return Err(refused(
                Errno::EINVAL,
                "the command goes to another vhca (vhca_tunnel_id)",
            ));
        }
        let uid = self.devx_uid(input)?;
        UID.set(input, uid.into());
        Ok(())
    }

    /// Executes a client's command and returns the outbox, even if the device refused.
    fn pass(&mut self, input: &[u8], out: u16) -> Result<(), Errno> {
        let mut output = vec![0; self.attrs.len(out)?];
        let result = self.file.kernel.pass(input, &mut output);
        if let Err(errno) = result
            && errno != Errno::EREMOTEIO
        {
            return Err(errno);
        }
        self.attrs.put(out, &output)?;
        result
    }

    pub(super) fn other(&mut self) -> Result<(), Errno> {
        let mut input = self.attrs.bytes(attr::OTHER_IN)?;
        let uid = self.devx_uid(&input)?;
        let tunnel = self.file.kernel.caps.vhca_tunnel_commands() != 0;
        let known = self.file.kernel.release.knows(rules::opcode(&input));
        if !known || !rules::is_general(&input, tunnel) {
            return Err(not_passed(&input, "OTHER"));
        }
        UID.set(&mut input, uid.into());
        self.pass(&input, attr::OTHER_OUT)
    }

    pub(super) fn obj_create(&mut self) -> Result<Object, Errno> {
        let mut input = self.attrs.bytes(attr::OBJ_IN)?;
        let kernel = &self.file.kernel;
        self.stamp(&mut input)?;
        if !rules::is_create(&input) {
            return Err(not_passed(&input, "OBJ_CREATE"));
        }
        if rules::opcode(&input) == Opcode::CREATE_MKEY {
            if input.len() < rules::CREATE_MKEY_MIN {
                let (has, least) = (input.len(), rules::CREATE_MKEY_MIN);
                let words = format!("the inbox of CREATE_MKEY has {has} bytes; it needs {least}");
                return Err(refused(Errno::EINVAL, words));
            }
            rules::require_mkey_umem(&mut input);
        } else {
            rules::require_umem(&mut input);
        }
        let apu = kernel.caps.apu() && kernel.release.knows_apu_cqs();
        if let Some(queue) = rules::cq_event_queue(&input, apu)
            && !kernel.is_completion_queue(queue)
        {
            let words = format!("EQ {queue} belongs to no completion vector (QUERY_EQN)");
            return Err(refused(Errno::ENOENT, words));
        }
        let mut output = vec![0; self.attrs.len(attr::OBJ_OUT)?];
        match kernel.pass(&input, &mut output) {
            Ok(()) => {}
            Err(Errno::EREMOTEIO) => {
                self.attrs.put(attr::OBJ_OUT, &output)?;
                return Err(Errno::EREMOTEIO);
            }
            Err(errno) => return Err(errno),
        }
        let created = rules::created_object(&input, &output).ok_or(Errno::EINVAL)?;
        let object = Object::Devx(DevxObject {
            id: created.id,
            destroy: created.destroy,
            bulk: created.bulk,
            serial: kernel.subscriptions.serial(),
        });
        match self.attrs.put(attr::OBJ_OUT, &output) {
            Ok(()) => Ok(object),
            Err(errno) => Err(self.abort(object, Vec::new(), errno)),
        }
    }

    /// Checks that a command names the object of the handle: a DevX object, or a verbs queue by the
    /// device's number.
    fn check_object(&self, input: &[u8]) -> Result<(), Errno> {
        let named = rules::named_object(input);
        let named = named.ok_or_else(|| {
            let words = format!("{:?} is not a command for an object", rules::opcode(input));
            refused(Errno::EINVAL, words)
        })?;
        let no_handle = || refused(Errno::EINVAL, "the request names no object");
        let handle = self.named.handle.ok_or_else(no_handle)?;
        let made_by = |opcode, number| named == ObjectId { number, opcode, general_type: 0 };
        let same = match self.state.object(handle) {
            Some(Object::Devx(object))
                if rules::opcode(input) == Opcode::QUERY_FLOW_COUNTER && object.bulk != 0 =>
            {
                let same_kind = named.opcode == object.id.opcode;
                same_kind && named.number.wrapping_sub(object.id.number) < object.bulk
            }
            Some(Object::Devx(object)) => named == object.id,
            Some(Object::Verbs(object)) => {
                object.queue().is_some_and(|(opcode, number)| made_by(opcode, number))
            }
            _ => false,
        };
        if same {
            return Ok(());
        }
        let words = format!("the command names another object than handle {handle} does");
        Err(refused(Errno::EINVAL, words))
    }

    pub(super) fn obj_modify(&mut self) -> Result<(), Errno> {
        let mut input = self.attrs.bytes(attr::OBJ_IN)?;
        self.stamp(&mut input)?;
        if !rules::is_modify(&input) {
            return Err(not_passed(&input, "OBJ_MODIFY"));
        }
        self.check_object(&input)?;
        rules::require_umem(&mut input);
        self.pass(&input, attr::OBJ_OUT)
    }

    pub(super) fn obj_query(&mut self) -> Result<(), Errno> {
        let input = self.query_command()?;
        self.check_object(&input)?;
        self.pass(&input, attr::OBJ_OUT)
    }

    /// The inbox of a query with the uid set; EINVAL if it is not a query.
    fn query_command(&self) -> Result<Vec<u8>, Errno> {
        let mut input = self.attrs.bytes(attr::OBJ_IN)?;
        self.stamp(&mut input)?;
        if rules::is_query(&input) { Ok(input) } else { Err(not_passed(&input, "OBJ_QUERY")) }
    }

    /// A query whose outbox arrives as a record of an async command file.
    pub(super) fn obj_async_query(&mut self) -> Result<(), Errno> {
        /// Maximum bytes of outboxes that may wait in one file.
        const MAX_WAITING: usize = 1 << 20;
        /// Bytes of the `wr_id` before an outbox.
        const HEAD: usize = 8;
        let input = self.query_command()?;
        let len = self.attrs.number(attr::ASYNC_QUERY_OUT_LEN, u16::MAX.into())? as usize;
        self.check_object(&input)?;
        let stream = self.stream()?;
        if stream.channel().waiting(HEAD) + len > MAX_WAITING {
            let words = format!("more than {MAX_WAITING} bytes would wait in the file");
            return Err(refused(Errno::EAGAIN, words));
        }
        let mut record = self.attrs.bytes(attr::ASYNC_QUERY_WR_ID)?;
        let mut output = vec![0; len];
        match self.file.kernel.run(&input, &mut output) {
            Ok(()) | Err(Errno::EREMOTEIO) => {}
            Err(errno) => return Err(self.file.kernel.release.refusal(errno, &[])),
        }
        record.extend(output);
        match stream.channel().send(record) {
            true => Ok(()),
            false => Err(refused(Errno::ENOMEM, "the client has too many unread records")),
        }
    }

    pub(super) fn query_eqn(&mut self) -> Result<(), Errno> {
        let vector = self.attrs.data(attr::QUERY_IN)? as u16;
        self.state.context()?;
        let queue = self.file.kernel.completion_queue(vector).ok_or_else(|| {
            refused(Errno::EINVAL, format!("there is no completion vector {vector}"))
        })?;
        self.attrs.put(attr::QUERY_OUT, &queue.to_ne_bytes()).map_err(|_| Errno::EFAULT)
    }

    /// The page of a doorbell register that the context allocated.
    pub(super) fn query_uar(&mut self) -> Result<(), Errno> {
        let context = self.state.context()?;
        let register = self.attrs.data(attr::QUERY_IN)? as u32;
        if context.dynamic_uars {
            return Err(refused(
                Errno::EINVAL,
                "no registers came with the context (dynamic UARs)",
            ));
        }
        let number = register / REGISTERS_PER_UAR;
        let (index, within) = (number / context.uars_per_page, number % context.uars_per_page);
        let first = *context.static_uars.get(index as usize).ok_or_else(|| {
            refused(Errno::EINVAL, format!("no register {register} came with the context"))
        })?;
        self.attrs.put(attr::QUERY_OUT, &(first + within).to_ne_bytes()).map_err(|_| Errno::EFAULT)
    }
}
